"""Where a model's sense of order comes from: one class a kind, computed from the position and from nothing else.

Positions are counted from 0 in a state of the model, int32 (B,): 32 bits because WebGPU and several mobile
accelerators have no 64-bit arithmetic. Rotary and sinusoidal positions are computed from that number at every step,
so nothing ends; a learned table ends where it ends.

No angle is ever computed. The usual way, sin(position · frequency), is only as good as a provider's large products and
its sine: WebGPU promises the sine of a small angle to 2^-11 and no more (WGSL, "Accuracy of Built-in Functions"), and
an accelerator that works in float16 cannot tell position 2,049 from 2,048. So the position is cut into digits, each
digit's turn is looked up, and turns are multiplied as complex numbers are: right to float32's last digit at every
position an int32 can hold, on every provider, for a table of 1,024 rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.model import ModelConfig, RotaryConfig
from t2r_export.model.ops import TORCH, TorchOps
from t2r_runtime.errors import UserError

BASE, DIGITS = 256, 4  # of a position: 2^32 of them
Rotary = tuple[Any, Any]  # cos and sin, (…, 1, d/2): the same for every head


class Positions(nn.Module):
    """The kind `none`, and the base of the others: adds nothing, rotates nothing, needs no state."""

    needs_state = False
    past_end = "refuse"  # clamp: every position past a table's end is its last one

    def embed(self, x: Any, position: Any, ops: TorchOps = TORCH) -> Any:
        """Token embeddings x (…, D) with what their position (…) adds to them."""
        return x

    def rotary(self, position: Any, ops: TorchOps = TORCH) -> Rotary | None:
        """cos and sin (…, 1, d/2) of the angles by which q and k turn at `position` (…), or None."""
        return None


class LearnedPositions(Positions):
    """A trained vector a position, up to `max_positions`."""

    needs_state = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.max_positions is not None
        self.table = nn.Embedding(config.max_positions, config.width)

    def embed(self, x: Any, position: Any, ops: TorchOps = TORCH) -> Any:
        rows = self.table.num_embeddings
        if self.past_end == "clamp":
            position = ops.minimum(position, rows - 1)
        elif isinstance(position, Tensor) and not position.is_meta and int(position.max()) >= rows:
            raise UserError(
                f"positions 0 to {rows - 1}, the rows of the learned table",
                f"position {int(position.max())}",
                "start a new text, or choose past_end='clamp'",
            )
        return ops.add(x, ops.embedding(position, self.table.weight))


class SinusoidalPositions(Positions):
    """sin and cos of position · 10000^(-2i/D), added to the embedding (Vaswani et al. 2017, section 3.5)."""

    needs_state = True
    turns: Tensor  # (DIGITS · BASE, 2F)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        steps = torch.arange(0, config.width, 2, dtype=torch.float64, device="cpu")
        self.register_buffer("turns", turns(10000.0 ** (-steps / config.width)), persistent=False)

    def embed(self, x: Any, position: Any, ops: TorchOps = TORCH) -> Any:
        cos, sin = turn(position, self.turns, ops)
        return ops.add(x, ops.squeeze(ops.concat([sin, cos]), -2))


class RotaryPositions(Positions):
    """q and k turn by position · frequency (Su et al. 2021), first half of a head against its second half."""

    needs_state = True
    turns: Tensor  # (DIGITS · BASE, 2F)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.rotary is not None
        self.frequencies = rotary_frequencies(config.rotary, config.head_size)
        self.register_buffer("turns", turns(self.frequencies), persistent=False)

    def rotary(self, position: Any, ops: TorchOps = TORCH) -> Rotary:
        return turn(position, self.turns, ops)

    def fixed(self, places: Tensor) -> Tensor:
        """cos and sin side by side, (N, d), float32, of the angles at places (N) that are known beforehand."""
        angles = places.double().unsqueeze(-1) * self.frequencies.double()
        return torch.cat([angles.cos(), angles.sin()], dim=1).float()


POSITIONS: dict[str, type[Positions]] = {
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "rotary": RotaryPositions,
    "none": Positions,
}


def build_positions(config: ModelConfig) -> Positions:
    kind = POSITIONS[config.position]
    return kind() if kind is Positions else kind(config)


def rotate(x: Any, rotary: Rotary, ops: TorchOps = TORCH) -> Any:
    """Turn x (…, heads, d) by the angles of `rotary`, cos and sin (…, 1, d/2)."""
    cos, sin = rotary
    half = x.shape[-1] // 2
    a, b = ops.split(x, [half, half])
    return ops.concat([ops.sub(ops.mul(a, cos), ops.mul(b, sin)), ops.add(ops.mul(b, cos), ops.mul(a, sin))])


def rotary_frequencies(config: RotaryConfig, head_size: int) -> Tensor:
    """Frequencies (d/2), float32, with the scaling for long contexts that the checkpoint was trained with.

    `linear` divides all by the factor. `llama3` divides the slow ones, keeps the fast ones and blends between, as
    Llama 3.1's model card describes.
    """
    # float32 throughout: the trained checkpoints' own code computed them so, and the 17th digit would be another model
    # on the CPU even where a model is laid out on the meta device: these are computed, not loaded
    steps = torch.arange(0, head_size, 2, dtype=torch.int64, device="cpu").float()
    frequencies = 1.0 / (config.theta ** (steps / head_size))
    if config.scaling == "linear":
        return frequencies / config.factor
    if config.scaling == "llama3":
        turns = config.original_max_positions * frequencies / (2 * math.pi)
        blend = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        blend = blend.clamp(0, 1)
        return frequencies * blend + (1 - blend) * frequencies / config.factor
    return frequencies


def turns(frequencies: Tensor) -> Tensor:
    """cos and sin of the angle by which each digit of a position turns each of F frequencies.

    Returns:
        (DIGITS · BASE, 2F) float32, row i · BASE + digit for the digit of BASE^i. Computed, not loaded: real numbers
        even where a model is laid out on the meta device.
    """
    worth = BASE ** torch.arange(DIGITS, dtype=torch.float64, device="cpu")
    parts = worth[:, None] * torch.arange(BASE, dtype=torch.float64, device="cpu")
    angles = parts.reshape(-1, 1) * frequencies.double()
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def turn(position: Any, table: Tensor, ops: TorchOps = TORCH) -> Rotary:
    """cos and sin (…, 1, F) of position (…) · frequency, the product of its digits' turns.

    (cos a + i sin a)(cos b + i sin b) = cos(a+b) + i sin(a+b), for the upper half of the digits and the lower at once.
    """
    rows = ops.embedding(ops.digits(position, BASE, DIGITS), table)  # (…, DIGITS, 2F)
    cos, sin = ops.split(rows, [rows.shape[-1] // 2] * 2)
    count = DIGITS
    while count > 1:
        count //= 2
        (a, b), (c, d) = ops.split(cos, [count] * 2, axis=-2), ops.split(sin, [count] * 2, axis=-2)
        cos = ops.sub(ops.mul(a, b), ops.mul(c, d))
        sin = ops.add(ops.mul(c, b), ops.mul(a, d))
    return cos, sin
