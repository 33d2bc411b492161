"""Rotations by angles proportional to the position, without computing the angles.

sin(position · frequency) is only as accurate as a provider's products and sine: WebGPU guarantees the sine of small
angles only to 2^-11 (WGSL, "Accuracy of Built-in Functions"), and float16 accelerators cannot distinguish position
2,049 from 2,048. Instead, the position is split into digits, each digit's rotation is looked up, and the rotations are
multiplied as complex numbers: accurate to float32's last digit at every int32 position, on every provider, with a table
of 128 rows.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import torch
from torch import Tensor

from t2r_export.model.ops import Ops, T

BASE, DIGITS = 16, 8  # 2^32 positions. Fewer digits would need fewer products, but a larger table


class Rotation(NamedTuple, Generic[T]):
    """cos and sin of F angles, broadcast against heads (B, heads, T, F)."""

    cos: T
    sin: T


def apply_rope(x: T, rotation: Rotation[T], ops: Ops[T]) -> T:
    """Rotate the first 2F dimensions of each head x (B, heads, T, d); the others are unchanged."""
    return ops.rotate(x, *rotation)


def rotation_table(frequencies: Tensor, factor: float = 1.0) -> Tensor:
    """cos and sin of the angle of each digit of a position for each of F frequencies.

    Args:
        factor: of the results of `rotation_at`; applied to the rows of one digit, because digits multiply.

    Returns:
        (DIGITS · BASE, 2F) float32, row i · BASE + digit for the digit of BASE^i. Has values even for
        models on the meta device.
    """
    worth = BASE ** torch.arange(DIGITS, dtype=torch.float64, device="cpu")
    parts = worth[:, None] * torch.arange(BASE, dtype=torch.float64, device="cpu")
    angles = parts.reshape(-1, 1) * frequencies.double()
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    table[:BASE] *= factor
    return table.float()


def rotation_at(position: T, table: Tensor, ops: Ops[T]) -> tuple[T, T]:
    """cos and sin (…, 1, F) of position (…) · frequency, the product of its digits' rotations.

    (cos a + i sin a)(cos b + i sin b) = cos(a+b) + i sin(a+b), for the upper and lower half of the digits at once.
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
