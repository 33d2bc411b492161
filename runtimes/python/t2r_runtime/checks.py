"""Arguments of another kind than they must be: each is a UserError, as a value out of range is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.errors import UserError, printable


def require_kind(value: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Refuse a value of another type.

    Args:
        expected: names the argument and its kind, as in "a Sampling as sampling".
    """
    if not isinstance(value, kind):
        raise UserError(expected, printable(f"{type(value).__name__} {value!r}", 100), "see the function's description")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, and not a whole one that no float reaches; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def require_value(good: bool, expected: str, received: object) -> None:
    """Refuse a value out of range. Raises UserError."""
    if not good:
        raise UserError(expected, repr(received), "choose another value")


def array_of(value: object, what: str) -> NDArray[Any]:
    """The value as an array.

    Raises:
        UserError: rows of different lengths, or what numpy makes no array of.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{what} as an array", printable(error), "make all rows as long as each other") from error


def listed(values: object, expected: str) -> list[Any]:
    """The values of anything that can be iterated, but a text.

    Raises:
        UserError: it cannot.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UserError(expected, printable(repr(values), 100), "give a list")
    return list(values)
