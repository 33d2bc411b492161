"""Rotations by angles that grow with the position, without computing an angle.

The usual way, sin(position · frequency), is only as good as a provider's large products and its sine: WebGPU promises
the sine of a small angle to 2^-11 and no more (WGSL, "Accuracy of Built-in Functions"), and an accelerator that works
in float16 cannot tell position 2,049 from 2,048. So the position is cut into digits, each digit's rotation is looked
up, and rotations are multiplied as complex numbers are: right to float32's last digit at every position an int32 can
hold, on every provider, for a table of 128 rows.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import torch
from torch import Tensor

from t2r_export.model.ops import Ops, T

BASE, DIGITS = 16, 8  # of a position: 2^32 of them. Fewer digits would be fewer products, of larger tables


class Rotation(NamedTuple, Generic[T]):
    """cos and sin of F angles, broadcast against heads (B, heads, T, F)."""

    cos: T
    sin: T


def apply_rope(x: T, rotation: Rotation[T], ops: Ops[T]) -> T:
    """Rotate the first 2F numbers of each head x (B, heads, T, d); what is behind them stays."""
    return ops.rotate(x, *rotation)


def rotation_table(frequencies: Tensor, factor: float = 1.0) -> Tensor:
    """cos and sin of the angle by which each digit of a position rotates each of F frequencies.

    Args:
        factor: of the cosines and sines that `rotation_at` gives: in the rows of one digit, since digits multiply.

    Returns:
        (DIGITS · BASE, 2F) float32, row i · BASE + digit for the digit of BASE^i. Computed, not loaded: real numbers
        even where a model is laid out on the meta device.
    """
    worth = BASE ** torch.arange(DIGITS, dtype=torch.float64, device="cpu")
    parts = worth[:, None] * torch.arange(BASE, dtype=torch.float64, device="cpu")
    angles = parts.reshape(-1, 1) * frequencies.double()
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    table[:BASE] *= factor
    return table.float()


def rotation_at(position: T, table: Tensor, ops: Ops[T]) -> tuple[T, T]:
    """cos and sin (…, 1, F) of position (…) · frequency, the product of its digits' rotations.

    (cos a + i sin a)(cos b + i sin b) = cos(a+b) + i sin(a+b), for the upper half of the digits and the lower at once.
    """
    rows = ops.embedding(ops.digits(position, BASE, DIGITS), table)  # (…, DIGITS, 2F)
    cos, sin = ops.split(rows, [table.shape[1] // 2] * 2)
    count = DIGITS
    while count > 1:
        count //= 2
        (a, b), (c, d) = ops.split(cos, [count] * 2, axis=-2), ops.split(sin, [count] * 2, axis=-2)
        cos = ops.sub(ops.mul(a, b), ops.mul(c, d))
        sin = ops.add(ops.mul(c, b), ops.mul(a, d))
    return cos, sin
