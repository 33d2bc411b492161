import click


@click.command("verify")
def command() -> None:
    """Not yet."""
