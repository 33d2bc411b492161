"""What commands print: text, or one JSON object for programs. stdout holds nothing else."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """The option `--json`, given to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(function)


def show(as_json: bool, data: Any, text: str) -> None:
    """Print `data` (a dataclass or mapping) as one JSON object, or `text`."""
    click.echo(json.dumps(plain(data), ensure_ascii=False) if as_json else text)


def note(text: str) -> None:
    """Print a line on stderr, so that stdout holds results only."""
    click.echo(text, err=True)


def plain(value: Any) -> Any:
    """`value` as JSON knows it: dataclasses are objects, paths are texts, and NaN and infinity are null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
