"""Arguments of another kind than they must be: each is a UserError, as a value out of range is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from t2r_runtime.errors import Kind, UserError, printable, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = (1 << 63) - 1  # what a graph takes for a whole number


def require_kind(value: object, types: type | tuple[type, ...], expected: str, kind: Kind) -> None:
    """Refuse a value of another type.

    Args:
        expected: names the argument and its type, as in "a Sampling as sampling".
        kind: of the error, here and below.
    """
    if not isinstance(value, types):
        received = f"{type(value).__name__} {shown(value)}"
        raise UserError(expected, received, "see the function's description", kind)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, and not a whole one that no float reaches; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def require_value(good: bool, expected: str, received: object, kind: Kind) -> None:
    """Refuse a value out of range. Raises UserError."""
    if not good:
        raise UserError(expected, shown(received), "choose another value", kind)


def array_of(value: object, what: str, kind: Kind) -> NDArray[Any]:
    """The value as an array.

    Raises:
        UserError: rows of different lengths, or what numpy makes no array of.
    """
    import numpy as np

    try:
        return np.asarray(value)
    except Exception as error:  # another library's array says in its own way that it is none of numpy's
        do = "make all rows as long as each other"
        raise UserError(f"{what} as an array", printable(error), do, kind) from error


def iterated(values: object, expected: str, kind: Kind) -> Iterator[Any]:
    """The values of anything that can be iterated, but a text.

    Raises:
        UserError: it cannot.
    """
    if not isinstance(values, str | bytes) and isinstance(values, Iterable):
        with contextlib.suppress(TypeError):  # an array without axes says that it can be iterated, and cannot
            return iter(values)
    raise UserError(expected, shown(values), "give a list", kind)


def listed(values: object, expected: str, kind: Kind) -> list[Any]:
    """`iterated`, as a list."""
    return list(iterated(values, expected, kind))
