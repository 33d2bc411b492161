"""Runtime type checks of function arguments and dataclass fields, for the public API."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from t2r_runtime.errors import UserError, shown

PLAIN = {int: "an integer", float: "a number", bool: "true or false"}
P = ParamSpec("P")
R = TypeVar("R")


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function with checks of its argument types against its annotations.

    Raises:
        UserError: when the decorated function is called with an argument of another type.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        _require({name: given[name] for name in given if name != "options"}, function)
        return function(*args, **kwargs)

    return checked


def with_paths(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a dataclass, with strings converted to paths where the annotation is Path."""
    hints = _hints(cls)
    return {
        name: Path(value)
        if isinstance(value, str) and _is(Path(), hints[name]) and not _is(value, hints[name])
        else value
        for name, value in options.items()
    }


def check_fields(config: Any) -> None:
    """Check the field types of a dataclass against its annotations.

    Raises:
        UserError: names the first mismatch.
    """
    _require({field.name: getattr(config, field.name) for field in dataclasses.fields(config)}, type(config))


def _require(values: dict[str, Any], owner: Any) -> None:
    hints = _hints(owner)
    for name, value in values.items():
        if name in hints and not _is(value, hints[name]):
            plain = next((words for kind, words in PLAIN.items() if hints[name] in (kind, kind | None)), None)
            if plain is not None:  # also from a command line or a recipe
                raise UserError(f"{name} to be {plain}", shown(value), f"correct {name}")
            expected = f"{name} of type {getattr(owner, '__annotations__', {}).get(name, hints[name])}"
            raise UserError(expected, f"{shown(value)} of type {type(value).__name__}", f"correct {name}")


@functools.cache
def _hints(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def _is(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, part) for part in parts)
    if origin in (tuple, Iterable) and not isinstance(value, str | bytes):
        if not isinstance(value, list | tuple):
            return False
        return all(_is(each, parts[0]) for each in value)
    if origin is not None:
        return isinstance(value, origin)
    if hint is Any or not isinstance(hint, type):
        return True
    if hint in (int, float):
        return type(value) is int or (hint is float and isinstance(value, float))
    return isinstance(value, hint)
