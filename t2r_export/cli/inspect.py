import click


@click.command("inspect")
def command() -> None:
    """Not yet."""
