"""Option types of a kind with fields, such as `linear:feature_size=32,gate=data`.

`KIND:help` prints the fields of a kind with their defaults. The options are eager, so `KIND:help` works alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from t2r_export.config.options import check_value, names, read_kind, read_options, usual
from t2r_export.config.validation import entry
from t2r_runtime.errors import UserError, did_you_mean

Fields = Mapping[str, "dataclasses.Field[Any]"]
HELP = "help"


class Spelled(click.ParamType[Any]):
    """KIND:NAME=VALUE,…; the command gets a tuple of the kind and a dict of values."""

    def __init__(self, what: str, kinds: Mapping[str, Fields]) -> None:
        """
        Args:
            what: what is chosen, with its article, for error messages.
            kinds: the fields of each kind (`config.options.options`).
        """
        self.what, self.kinds, self.name = what, kinds, f"{'|'.join(kinds)}:NAME=VALUE,…"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "KIND:NAME=VALUE,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        kind, _, rest = value.partition(":")
        fields = entry(self.what, kind, self.kinds)
        if rest == HELP and ctx is not None:
            _help(ctx, f"{kind}:", fields)
        kind, values = read_kind(value)
        _known(kind, values, fields)
        return kind, values

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(kind) for kind in self.kinds if kind.startswith(incomplete)]


class Inside(click.ParamType[Any]):
    """NAME=VALUE,…; the command gets a dict of values. `help` prints the fields."""

    def __init__(self, option: str, fields: Fields) -> None:
        """
        Args:
            option: the name of the option, for error messages.
        """
        self.option, self.fields, self.name = option, fields, "NAME=VALUE,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value == HELP and ctx is not None:
            _help(ctx, "", self.fields)
        texts = [name for name, field in self.fields.items() if field.type == "str"]
        values = read_options(value, f"--{self.option} NAME=VALUE,NAME=VALUE", texts)
        _known(f"--{self.option}", values, self.fields)
        for name, one in values.items():  # the config's messages would use its field names
            check_value(f"{name} of --{self.option}", one, self.fields[name])
        return values


def _known(of: str, values: Mapping[str, Any], fields: Fields) -> None:
    if stray := [name for name in names(values) if name not in fields]:
        do = did_you_mean(stray[0], fields, "leave it out")
        raise UserError(f"options of {of} ({', '.join(fields) or 'none'})", ", ".join(stray), do)


def _help(context: click.Context, prefix: str, fields: Fields) -> NoReturn:
    click.echo(f"{prefix}NAME=VALUE,…\n" + described(fields))
    context.exit()


def described(fields: Fields) -> str:
    """Format the fields of a kind as a definition list."""
    formatter = click.HelpFormatter()
    rows = [(f"{name}={usual(field)}", _text(field)) for name, field in fields.items()]
    with formatter.indentation():
        formatter.write_dl(rows or [("(no fields)", "")])
    return formatter.getvalue().rstrip("\n")


def _text(field: dataclasses.Field[Any]) -> str:
    choices = field.metadata["choices"]
    return f"{field.metadata['help']}{'  [' + '|'.join(map(str, choices)) + ']' if choices else ''}"
