"""The command line as text, one line per option, as frozen in tests/cli/command_line.txt.

    python tests/cli/command_line.py > tests/cli/command_line.txt

rewrites the file; its diff shows what changed for users. With the argument `verbs`, the program prints the table of
docs/commands.md.
"""

from __future__ import annotations

import re
import sys

import click

from t2r_export.cli import VERBS, t2r
from t2r_export.cli.spelled import Spelled
from t2r_export.config.options import usual


def commands() -> dict[str, click.Command]:
    """Every command by its verb, in the order of `t2r --help`."""
    context = click.Context(t2r)
    found = {verb: t2r.get_command(context, verb) for verb in VERBS}
    return {verb: command for verb, command in found.items() if command is not None}


def described() -> str:
    """All verbs with their arguments and options: names, type, default, and whether repeatable or required."""
    return "\n".join(_command(verb, command) for verb, command in commands().items())


def _command(verb: str, command: click.Command) -> str:
    context = click.Context(command)
    arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
    options = [p for p in command.params if isinstance(p, click.Option)]
    lines = [" ".join(["t2r", verb, *arguments])]
    for option in sorted(options, key=lambda option: option.opts[0]):
        lines.append("    " + "  ".join(_option(option)))
        if isinstance(option.type, Spelled):
            lines += [f"        {line}" for line in _kinds(option.type)]
    return "\n".join(lines) + "\n"


def _kinds(spelled: Spelled) -> list[str]:
    """The fields of each kind, with their defaults."""
    return [
        f"{kind}: {', '.join(f'{name}={usual(field)}' for name, field in fields.items()) or 'no fields'}"
        for kind, fields in spelled.kinds.items()
    ]


def _option(option: click.Option) -> list[str]:
    default = option.to_info_dict()["default"]  # None if unset, whatever sentinel click uses
    in_help = re.search(r"\[(.*)\]$", option.help or "")  # a default from a library function, or one per mixer
    said = "required" if option.required else in_help[1] if in_help else f"default: {_value(default)}"
    names = ", ".join(option.opts + option.secondary_opts)
    return [names, _type(option), said, *(["may be repeated"] if option.multiple else [])]


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _type(option: click.Option) -> str:
    if option.is_flag:
        return "flag"
    kind = option.type
    if isinstance(kind, click.Choice):
        return "|".join(str(choice) for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        low = "" if kind.min is None else f"{kind.min} {'<' if kind.min_open else '<='} "
        high = "" if kind.max is None else f" {'<' if kind.max_open else '<='} {kind.max}"
        return f"{low}{kind.name.split()[0]}{high}"
    return kind.name


def options(command: click.Command) -> list[click.Option]:
    """A command's options, without --help."""
    return [option for option in command.params if isinstance(option, click.Option)]


def verbs() -> str:
    """The table of verbs of docs/commands.md."""
    rows = ["| verb | | options |", "|---|---|---|"]
    for verb, command in commands().items():
        names = " ".join(sorted(f"`{option.opts[0]}`" for option in options(command)))
        rows.append(f"| `{verb}` | {command.short_help} | {names} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(verbs() if "verbs" in sys.argv[1:] else described(), end="")
