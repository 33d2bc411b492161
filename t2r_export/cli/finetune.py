import click


@click.command("finetune")
def command() -> None:
    """Not yet."""
