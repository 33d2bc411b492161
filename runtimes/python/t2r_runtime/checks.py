"""Arguments of another kind than they must be: each is a UserError, as a value out of range is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.errors import Kind, UserError, printable


def require_kind(value: object, types: type | tuple[type, ...], expected: str, kind: Kind) -> None:
    """Refuse a value of another type.

    Args:
        expected: names the argument and its type, as in "a Sampling as sampling".
        kind: of the error, here and below.
    """
    if not isinstance(value, types):
        received = printable(f"{type(value).__name__} {value!r}", 100)
        raise UserError(expected, received, "see the function's description", kind)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, and not a whole one that no float reaches; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def require_value(good: bool, expected: str, received: object, kind: Kind) -> None:
    """Refuse a value out of range. Raises UserError."""
    if not good:
        raise UserError(expected, repr(received), "choose another value", kind)


def array_of(value: object, what: str, kind: Kind) -> NDArray[Any]:
    """The value as an array.

    Raises:
        UserError: rows of different lengths, or what numpy makes no array of.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        do = "make all rows as long as each other"
        raise UserError(f"{what} as an array", printable(error), do, kind) from error


def listed(values: object, expected: str, kind: Kind) -> list[Any]:
    """The values of anything that can be iterated, but a text.

    Raises:
        UserError: it cannot.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UserError(expected, printable(repr(values), 100), "give a list", kind)
    return list(values)
