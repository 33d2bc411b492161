"""Path options and arguments: not empty, since pathlib reads an empty path as the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from t2r_runtime.errors import UserError


class Named(click.Path):
    """A path that is not empty; an empty one raises UserError."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            name = "" if param is None else f" for {param.opts[0] if isinstance(param, click.Option) else param.name}"
            raise UserError(f"a file name{name}", "an empty one", "name a file")
        return super().convert(value, param, ctx)


def refuse_empty(command: click.Command) -> None:
    """Let every path of a command be a Named one; all are click.Path(path_type=Path)."""
    named = Named(path_type=Path)
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type = named
