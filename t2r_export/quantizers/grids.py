"""Grids on which the blocks of a quantized file's weights lie, found from their float32 values.

A file that was quantized stores whole numbers n per block, with a scale d and in some formats a minimum m: a weight is
d n or d n + m. As integers with a common exponent, the values of a block have a multiple of d as their greatest common
divisor, and so have their differences if there is a minimum. The search is therefore exact, needs no file, and finds
blocks in any order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SIZES = (16, 32, 64, 128)  # of blocks; larger ones are found as several of the last
BITS = (4, 8)
SHIFT = 35  # most bits between the exponents of 128 weights; more are on no grid
DIGITS = 24  # of float32
NUMBERS = 1 << 20  # weights at a time

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Form:
    """A format of blocks.

    Attributes:
        offset: a weight is scale (level - middle) + offset, with an offset per block; else there is none.
    """

    bits: int
    size: int  # weights per block
    offset: bool

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights."""
        blocks = -(-width // self.size)
        return blocks * (self.size * self.bits // 8 + 4 * (1 + self.offset))


FORMS = [Form(bits, size, offset) for bits in BITS for size in SIZES for offset in (False, True)]


def fitting(matrix: Floats) -> Flags:
    """Which of FORMS hold each row of `matrix` (rows, in) to the bit, computed in float32: (forms, rows)."""
    parts = [_fitting(part) for part in _some(matrix)]
    return np.concatenate(parts, 1) if parts else np.zeros((len(FORMS), 0), np.bool_)


def held(matrix: Floats, form: Form) -> tuple[npt.NDArray[np.uint8], Floats, Floats | None]:
    """Levels (rows, blocks, size), scales and offsets (rows, blocks) of rows that the form holds."""
    parts = [_held(part, form) for part in _some(matrix)]
    levels, scales, offsets = (np.concatenate(each) for each in zip(*parts, strict=True))
    return levels, scales, offsets if form.offset else None


def _some(matrix: Floats) -> Iterator[Floats]:
    count = max(1, NUMBERS // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), count):
        yield matrix[start : start + count]


def _fitting(matrix: Floats) -> Flags:
    rows, width = matrix.shape
    whole, _, known = _integers(matrix)
    found: dict[Form, Flags] = dict.fromkeys(FORMS, np.zeros(rows, np.bool_))
    for offset in (False, True):
        values = whole.reshape(rows, -1, SIZES[0])
        first = values[..., 0]
        divisor = np.gcd.reduce(values - first[..., None] * offset, -1)
        low, high = values.min(-1), values.max(-1)
        for size in SIZES:
            if size > SIZES[0]:
                divisor = np.gcd(divisor[:, ::2], divisor[:, 1::2])
                if offset:
                    divisor = np.gcd(divisor, first[:, ::2] - first[:, 1::2])
                first = first[:, ::2]
                low, high = np.minimum(low[:, ::2], low[:, 1::2]), np.maximum(high[:, ::2], high[:, 1::2])
            if offset and width % size:
                continue
            for bits in BITS:
                form = Form(bits, size, offset)
                found[form] = np.logical_and.reduce(_fits(divisor, low, high, form) & known, -1)
    return np.stack([found[form] for form in FORMS])


def _fits(divisor: Integers, low: Integers, high: Integers, form: Form) -> Flags:
    """Whether the form holds blocks with values from `low` to `high` that differ by multiples of `divisor`."""
    unit = np.maximum(divisor, 1)
    if form.offset:
        steps = (high - low) // unit
        exact = _is_float32(low + (steps + 1) // 2 * unit) & (_odd(unit) <= 1 << DIGITS)
        levels: Flags = (steps < 1 << form.bits) & exact & (_odd(unit) * steps <= 1 << DIGITS)
        return levels
    below, above = -low // unit, high // unit
    within: Flags = (np.maximum(below, above) <= form.middle) & (np.minimum(below, above) < form.middle)
    return within & _is_float32(unit)


def _odd(whole: Integers) -> Integers:
    """Integers divided by their largest power of two."""
    odd: Integers = whole // np.maximum(whole & -whole, 1)
    return odd


def _is_float32(whole: Integers) -> Flags:
    exact: Flags = np.abs(_odd(whole)) <= 1 << DIGITS
    return exact


def _integers(matrix: Floats) -> tuple[Integers, npt.NDArray[np.int32], Flags]:
    """Rows, padded with zeros to a multiple of 128, as integers of one exponent per 128 values.

    Returns:
        Integers (rows, in), exponents (rows, in / 128), and whether they hold the values (rows, 1).
    """
    rows, width = matrix.shape
    padded = np.pad(matrix, ((0, 0), (0, -width % SIZES[-1]))).reshape(rows, -1, SIZES[-1])
    mantissas, exponents = np.frexp(padded)
    whole = (mantissas * np.float32(1 << DIGITS)).astype(np.int64)
    least = np.where(whole == 0, np.int32(1 << 10), exponents).min(-1, keepdims=True)
    shift = np.where(whole == 0, 0, exponents - least)
    known: Flags = np.logical_and.reduce(shift.reshape(rows, -1) <= SHIFT, -1, keepdims=True)
    return (whole << np.minimum(shift, SHIFT)).reshape(rows, -1), least[..., 0] - DIGITS, known


def _held(matrix: Floats, form: Form) -> tuple[npt.NDArray[np.uint8], Floats, Floats]:
    rows, width = matrix.shape
    blocks = -(-width // form.size)
    whole, exponents, _ = _integers(matrix)
    values = whole.reshape(rows, -1, form.size)[:, :blocks]
    exponent = np.repeat(exponents, SIZES[-1] // form.size, 1)[:, :blocks]
    low, high = values.min(-1), values.max(-1)
    divisor = np.gcd.reduce(values - low[..., None] * form.offset, -1)
    unit = np.maximum(divisor, 1)
    if form.offset:
        below = ((high - low) // unit + 1) // 2  # levels of the block below its middle
        levels = (values - low[..., None]) // unit[..., None] + (form.middle - below)[..., None]
        offsets = np.ldexp((low + below * divisor).astype(np.float64), exponent)
    else:
        unit = np.where(high // unit < form.middle, unit, -unit)  # the lowest level is one further away
        levels, offsets = values // unit[..., None] + form.middle, np.zeros(low.shape)
    scales = np.ldexp(np.where(divisor == 0, 0, unit).astype(np.float64), exponent)
    return levels.astype(np.uint8), scales.astype(np.float32), offsets.astype(np.float32)
