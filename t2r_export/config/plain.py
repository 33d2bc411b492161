"""Convert configs to plain data (JSON, TOML, checkpoints) and back.

Supports nested dataclasses, tuples and kinds. A config of several kinds (`tagged.Kind`) is stored with its `kind` and
read with the table that its base class names.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from t2r_export.config.options import changed
from t2r_export.config.tagged import HasConfig, Kind, resolve
from t2r_export.config.validation import MAX_LAYERS, MAX_WHOLE, choice, fields, need

C = TypeVar("C")
MAX_NUMBERS = 1 << 20  # maximum length of a list of integers, such as special tokens


def to_plain(value: Any, *, short: bool = False) -> Any:
    """Convert a config to dictionaries, lists and scalars; `from_plain` restores it.

    Args:
        short: omit fields with default values.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind} if isinstance(value, Kind) else {}
        kept = [field for field in dataclasses.fields(value) if not short or changed(value, field)]
        return kind | {field.name: to_plain(getattr(value, field.name), short=short) for field in kept}
    if isinstance(value, tuple | list):
        return [to_plain(item, short=short) for item in value]
    return value


def from_plain(cls: type[C], data: Any, what: str) -> C:
    """Create a config of type `cls` from plain data.

    Args:
        cls: a dataclass, or an abstract base with kinds.
        what: the name of the config, for messages.

    Raises:
        UserError: names a missing, unknown or invalid key or value.
    """
    if issubclass(cls, Kind) and "kind" not in vars(cls):
        made: C = of_table(resolve(cls.TABLE), data, what)
        return made
    kind: Any = cls
    values, forms, tables = fields(cls, data, what), _forms(kind), _tables(kind)
    return cls(**{name: _read(forms[name], v, f"{what}.{name}", tables.get(name)) for name, v in values.items()})


def of_table(table: Mapping[str, HasConfig], data: Any, what: str) -> Any:
    """Create a config of the `kind` in plain data, with a table of kinds. Raises UserError, as `from_plain`."""
    need(isinstance(data, Mapping), f"{what} to be a JSON object", type(data).__name__, "correct the config")
    values = dict(data)
    kind = values.pop("kind", None)
    choice(f"{what}.kind", kind, tuple(table))
    return from_plain(table[str(kind)].config, values, f"{what} ({kind})")


@functools.cache
def _forms(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


@functools.cache
def _tables(cls: Any) -> dict[str, str]:
    """ "module:NAME" of the tables that fields name in their metadata."""
    found = {field.name: field.metadata.get("table") for field in dataclasses.fields(cls)}
    return {name: table for name, table in found.items() if table is not None}


def _read(form: Any, value: Any, what: str, table: str | None = None) -> Any:
    """A field's value; scalars are checked by the config itself."""
    if get_origin(form) in (Union, types.UnionType) and table is None:
        if value is None:
            return None
        form = next(option for option in get_args(form) if option is not type(None))
    if get_origin(form) is tuple:
        most = MAX_NUMBERS if get_args(form)[0] is int else MAX_LAYERS
        need(
            isinstance(value, list | tuple) and len(value) <= most,
            f"{what} to be a list of at most {most}",
            type(value).__name__,
            "correct the config",
        )
        return tuple(_read(get_args(form)[0], item, what, table) for item in value)
    if table is not None:
        return of_table(resolve(table), value, what)
    if value is not None and dataclasses.is_dataclass(form) and isinstance(form, type):
        return from_plain(form, value, what)
    if form is float and type(value) is int and abs(value) <= MAX_WHOLE:
        return float(value)  # operator attributes distinguish 1 from 1.0
    return value
