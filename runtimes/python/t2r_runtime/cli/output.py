"""Output of commands: text or one JSON object on stdout, notes on stderr."""

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
    """Add the option `--json`; the command gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(function)


def show(as_json: bool, data: Any, text: str) -> None:
    """Print `data` (a dataclass or mapping) as one JSON object, or `text`."""
    click.echo(json.dumps(plain(data), ensure_ascii=False) if as_json else text)


def note(text: str) -> None:
    """Print a line on stderr."""
    click.echo(text, err=True)


def plain(value: Any) -> Any:
    """Convert to JSON types: dataclasses become objects, paths strings, NaN and infinity null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
