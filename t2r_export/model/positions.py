"""Where a model's sense of order comes from: one class per kind, computed from the position and from nothing else.

Positions are counted from 0 in a state of the model, int32 (B,): 32 bits because WebGPU and several mobile
accelerators have no 64-bit arithmetic. Rotary and sinusoidal positions are computed from that number at every step,
so nothing ends; a learned table ends where it ends.

No angle is ever computed. The usual way, sin(position · frequency), is only as good as a provider's large products and
its sine: WebGPU promises the sine of a small angle to 2^-11 and no more (WGSL, "Accuracy of Built-in Functions"), and
an accelerator that works in float16 cannot tell position 2,049 from 2,048. So the position is cut into digits, each
digit's rotation is looked up, and rotations are multiplied as complex numbers are: right to float32's last digit at
every position an int32 can hold, on every provider, for a table of 128 rows.

With past_end wrap:N, every use of an absolute position, as an angle or as a row, is of the position modulo N. What sees
distances alone (windows, softmax layers, features that rotate behind φ) keeps the position as it is counted, since a
distance across the end of N would be another one.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

import torch
from torch import Tensor, nn

from t2r_export.config.attention import RotaryConfig
from t2r_export.config.model import StackConfig
from t2r_export.model.ops import Ops, T
from t2r_runtime.contract.signature import wrap_length
from t2r_runtime.errors import UserError

BASE, DIGITS = 16, 8  # of a position: 2^32 of them. Fewer digits would be fewer products, of larger tables


class Rotation(NamedTuple, Generic[T]):
    """cos and sin of F angles, broadcast against heads (B, heads, T, F)."""

    cos: T
    sin: T


class Positions(nn.Module):
    """The kind `none`, and the base of the others: adds nothing to the embeddings."""

    past_end = "refuse"  # clamp: every position past a table's end is its last one; wrap:N: all are modulo N

    def __init__(self, config: StackConfig, width: int) -> None:
        super().__init__()

    @property
    def wrap(self) -> int | None:
        """N of wrap:N."""
        return wrap_length(self.past_end)

    def embed(self, x: T, position: T, ops: Ops[T]) -> T:
        """Token embeddings, rows (N, D), with what their position (N,) adds to them."""
        return x


class LearnedPositions(Positions):
    """A trained vector per position, up to `max_positions`."""

    def __init__(self, config: StackConfig, width: int) -> None:
        super().__init__(config, width)
        assert config.max_positions is not None
        self.table = nn.Embedding(config.max_positions, width)

    def embed(self, x: T, position: T, ops: Ops[T]) -> T:
        rows = self.table.num_embeddings
        if self.past_end == "clamp":
            position = ops.minimum(position, rows - 1)
        elif isinstance(position, Tensor) and not position.is_meta and int(position.max()) >= rows:
            raise UserError(
                f"positions 0 to {rows - 1}, the rows of the learned table",
                f"position {int(position.max())}",
                "start a new text, or choose another past_end",
            )
        return ops.add(x, ops.embedding(position, self.table.weight))


class SinusoidalPositions(Positions):
    """sin and cos of position · 10000^(-2i/D), added to the embedding (Vaswani et al. 2017, section 3.5)."""

    table: Tensor  # (DIGITS · BASE, 2F)

    def __init__(self, config: StackConfig, width: int) -> None:
        super().__init__(config, width)
        steps = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
        self.register_buffer("table", rotation_table(10000.0 ** (-steps / width)), persistent=False)

    def embed(self, x: T, position: T, ops: Ops[T]) -> T:
        cos, sin = rotation_at(position, self.table, ops)
        return ops.add(x, ops.squeeze(ops.concat([sin, cos]), -2))


POSITIONS: dict[str, type[Positions]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "none": Positions,
}


def build_positions(config: StackConfig, width: int) -> Positions:
    """What the config adds to the embeddings."""
    return POSITIONS[config.position](config, width)


class Rope(nn.Module):
    """Rotary positions (Su et al. 2021): q and k rotate by position · frequency, the first half of what rotates of a
    head against the second. One for all layers of the same frequencies."""

    table: Tensor  # (DIGITS · BASE, 2F)

    def __init__(self, config: RotaryConfig, size: int) -> None:
        super().__init__()
        self.frequencies = rotary_frequencies(config, size)
        self.register_buffer("table", rotation_table(self.frequencies), persistent=False)
        self._fixed: dict[tuple[int, int], Tensor] = {}

    def at(self, position: T, ops: Ops[T]) -> Rotation[T]:
        """At positions (B, T) that are computed: cos and sin (B, 1, T, F)."""
        cos, sin = rotation_at(position, self.table, ops)  # (B, T, 1, F)
        size = self.table.shape[1] // 2
        return Rotation(*(ops.reshape(part, (0, 1, -1, size)) for part in (cos, sin)))

    def between(self, start: int, stop: int, ops: Ops[T], name: str) -> Rotation[T]:
        """At start, …, stop - 1, known beforehand: constants (stop - start, F), stored under `name`."""
        if (start, stop) not in self._fixed:
            angles = torch.arange(start, stop, dtype=torch.float64, device="cpu")[:, None] * self.frequencies.double()
            self._fixed[start, stop] = torch.cat([angles.cos(), angles.sin()], dim=1)
        table = ops.constant(self._fixed[start, stop].numpy(), "float32", f"{name}_{start}_{stop}")
        return Rotation(*ops.split(table, [len(self.frequencies)] * 2))


def apply_rope(x: T, rotation: Rotation[T], ops: Ops[T]) -> T:
    """Rotate the first 2F numbers of each head x (B, heads, T, d); what is behind them stays."""
    return ops.rotate(x, *rotation)


def rotary_frequencies(config: RotaryConfig, size: int) -> Tensor:
    """Frequencies (size/2), float32, with the scaling for long contexts that the checkpoint was trained with.

    `linear` divides all by the factor. `llama3` divides the slow ones, keeps the fast ones and blends between, as
    Llama 3.1's model card describes.
    """
    # float32 throughout: the trained checkpoints' own code computed them so, and the 17th digit would be another model
    # on the CPU even where a model is laid out on the meta device: these are computed, not loaded
    steps = torch.arange(0, size, 2, dtype=torch.int64, device="cpu").float()
    frequencies = 1.0 / (config.theta ** (steps / size))
    if config.scaling == "linear":
        return frequencies / config.factor
    if config.scaling == "llama3":
        turns = config.original_max_positions * frequencies / (2 * math.pi)
        blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        blend = blend.clamp(0, 1)
        return frequencies * blend + (1 - blend) * frequencies / config.factor
    return frequencies


def rotation_table(frequencies: Tensor) -> Tensor:
    """cos and sin of the angle by which each digit of a position rotates each of F frequencies.

    Returns:
        (DIGITS · BASE, 2F) float32, row i · BASE + digit for the digit of BASE^i. Computed, not loaded: real numbers
        even where a model is laid out on the meta device.
    """
    worth = BASE ** torch.arange(DIGITS, dtype=torch.float64, device="cpu")
    parts = worth[:, None] * torch.arange(BASE, dtype=torch.float64, device="cpu")
    angles = parts.reshape(-1, 1) * frequencies.double()
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


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
