"""Values in recipes: their kinds, and errors that name the file and the section. Imports without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from t2r_runtime.errors import UserError, did_you_mean, printable

T = TypeVar("T")

# kinds of values: Python types (a bool is not a number), and a description
TEXT, WHOLE, FLAG = ((str,), "a text"), ((int,), "a whole number"), ((bool,), "true or false")
NUMBER, TABLE, TABLES = ((int, float), "a number"), ((dict,), "a table"), ((list,), "a list of tables")
TEXTS = ((str, list), "a text or a list of texts")
Keys = Mapping[str, tuple[tuple[type, ...], str]]


def check(data: Mapping[str, Any], keys: Keys, needed: tuple[str, ...] | Keys, where: str) -> None:
    """Raise UserError unless `data` has all `needed` keys, and only `keys` with values of their kinds."""
    for key in data:
        if key not in keys:
            do = did_you_mean(key, keys, "correct the recipe")
            raise wrong(where, f"the keys {', '.join(keys)}", f"the key {printable(key, 60)}", do)
    for key in needed:
        if key not in data:
            raise wrong(where, f"the key {key}", "none")
    for key, value in data.items():
        types, kind = keys[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise wrong(where, f"{key} to be {kind}", printable(repr(value), 60))


def value(where: str, make: Callable[..., T], *arguments: Any) -> T:
    """Call `make`; its errors name the place in the recipe."""
    try:
        return make(*arguments)
    except UserError as error:
        raise wrong(where, error.expected, error.received, error.do) from error
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise wrong(where, "values of the documented kinds", printable(error)) from error


def texts(value: str | list[Any], where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not names or not all(isinstance(name, str) for name in names):
        raise wrong(where, TEXTS[1], printable(repr(value), 60))
    return tuple(inside(name, where) for name in names)


def inside(name: str, where: str) -> str:
    """`name`, if it is a relative path without `..`."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise wrong(where, "the name of a file in the data folder", repr(name))
    return name


def wrong(where: str, expected: str, received: str, do: str = "correct the recipe") -> UserError:
    return UserError(f"in {where} {expected}", received, f"{do}; docs/finetuning.md has a recipe's keys")
