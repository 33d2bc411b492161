"""A program of subcommands (verbs), each a module with a click command named `command`, imported on use.

These modules import numpy and heavier packages inside functions, so that `--help` is fast.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

import t2r_runtime.cli.exit as ends
from t2r_runtime.cli.numbers import bound
from t2r_runtime.cli.paths import refuse_empty
from t2r_runtime.errors import UserError, did_you_mean

COLLECTED = gc.get_threshold()  # Python's default, before `run` raises it
Verbs = Mapping[str, tuple[str, str]]  # verb: (module, help in one line)


class Group(click.Group):
    """A click group that imports its commands on use."""

    def __init__(self, verbs: Verbs, **options: Any) -> None:
        super().__init__(**options)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(*self.verbs[cmd_name]) if cmd_name in self.verbs else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if verb not in self.verbs and verb[:1] != "-" and not ctx.resilient_parsing:
            do = did_you_mean(verb, self.verbs, f"see `{ctx.command_path} --help`")
            raise UserError(f"a verb of {ctx.command_path}", repr(verb), do)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in self.verbs.items()])


def load(module: str, text: str) -> click.Command:
    """Import a module and return its `command`."""
    command = importlib.import_module(module).command
    assert isinstance(command, click.Command)
    command.short_help = text
    bound(command)
    refuse_empty(command)
    return command


def version_option(package: str, version: str) -> click.Option:
    """The option `--version`."""

    def show(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value:
            from t2r_runtime.contract.signature import CONTRACT_VERSION

            click.echo(f"{package} {version}, graph contract {CONTRACT_VERSION}")
            context.exit()

    form: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": show}
    return click.Option(["--version"], help="Show the version and exit.", **form)


def run(command: click.Command, program: str, arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit code; without `arguments`, run with those of the process, which then ends."""
    if arguments is not None:
        return ends.run(command, program, arguments)
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    if variable in os.environ:  # shell completion
        from click.shell_completion import shell_complete

        return shell_complete(command, {}, program, variable, os.environ[variable])
    gc.set_threshold(50_000)  # importing torch makes so many objects that the default collects for 0.05 s
    code = ends.run(command, program, sys.argv[1:], last=True)
    gc.freeze()  # skips a last collection at exit, which takes 0.25 s with torch
    return code
