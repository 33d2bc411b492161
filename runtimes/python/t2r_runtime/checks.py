"""Checks of arguments; an argument of the wrong type or out of range is a UserError."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from t2r_runtime.errors import Kind, UserError, printable, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = (1 << 63) - 1  # largest int64


def require_kind(value: object, types: type | tuple[type, ...], expected: str, kind: Kind) -> None:
    """Raise UserError unless `value` has one of `types`.

    Args:
        expected: the argument and its type, such as "a Sampling as sampling".
        kind: the kind of the error.
    """
    if not isinstance(value, types):
        received = f"{type(value).__name__} {shown(value)}"
        raise UserError(expected, received, "see the function's description", kind)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number that a float can represent, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def require_value(good: bool, expected: str, received: object, kind: Kind) -> None:
    """Raise UserError unless `good`."""
    if not good:
        raise UserError(expected, shown(received), "choose another value", kind)


def require_int(value: object, what: str, least: int, kind: Kind, most: int = LARGEST) -> None:
    """Raise UserError unless `value` is an int, not a bool, from `least` to `most`."""
    bounds = f"of at least {least}" if most == LARGEST else f"from {least} to {most}"
    require_value(type(value) is int and least <= value <= most, f"{what} {bounds}", value, kind)


def array_of(value: object, what: str, kind: Kind) -> NDArray[Any]:
    """Convert `value` to an array. Raises UserError if numpy cannot, as for rows of different lengths."""
    import numpy as np

    try:
        return np.asarray(value)
    except Exception as error:  # other libraries' arrays raise errors of any type
        raise UserError(f"{what} as an array", printable(error), "pass rows of equal length", kind) from error


def numbers_of(values: object, what: str, kinds: str = "fiu") -> NDArray[Any]:
    """Convert `values` to an array. Raises UserError unless NumPy's dtype kind is one of `kinds`."""
    array = array_of(values, what, "argument")
    require_value(array.dtype.kind in kinds, f"numbers as {what}", array.dtype, "argument")
    return array


def range_of(low: object, high: object) -> str:
    """Format a range of ids for an error message: `-1 … 11`, or one id if both are equal."""
    return f"{low}" if low == high else f"{low} … {high}"


def not_finite(received: str = "NaN or infinity") -> UserError:
    """The error for logits that no token can be chosen from."""
    return UserError("finite logits", received, "check the graph with t2r verify", "graph")


def iterated(values: object, expected: str, kind: Kind) -> Iterator[Any]:
    """Iterate over `values`. Raises UserError if it is a string or not iterable."""
    if not isinstance(values, str | bytes) and isinstance(values, Iterable):
        with contextlib.suppress(TypeError):  # a zero-dimensional array is Iterable, but iter() raises
            return iter(values)
    raise UserError(expected, shown(values), "pass a list", kind)


def listed(values: object, expected: str, kind: Kind) -> list[Any]:
    """`iterated`, as a list."""
    return list(iterated(values, expected, kind))
