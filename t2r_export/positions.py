"""Where a model's sense of order comes from: one class a kind, computed from the position and from nothing else.

Positions are counted from 0 in a state of the model, int32 (B,): 32 bits because WebGPU and several mobile
accelerators have no 64-bit arithmetic. Rotary and sinusoidal positions are computed from that number at every step,
so no table ends; a learned table ends where it ends.

Angles are the float32 product position · frequency, as transformers computes them, so that the eager model, the graph
and the checkpoint's origin agree at every position.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config import ModelConfig, RotaryConfig
from t2r_export.ops import TORCH, TorchOps
from t2r_runtime.errors import UserError

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

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # computed, not loaded: real numbers even where a model is laid out on the meta device
        steps = torch.arange(0, config.width, 2, dtype=torch.float64, device="cpu")
        frequencies = 10000.0 ** (-steps / config.width)
        self.register_buffer("frequencies", frequencies.float(), persistent=False)

    def embed(self, x: Any, position: Any, ops: TorchOps = TORCH) -> Any:
        angles = _angles(position, self.frequencies, ops)
        return ops.add(x, ops.concat([ops.sin(angles), ops.cos(angles)]))


class RotaryPositions(Positions):
    """q and k turn by position · frequency (Su et al. 2021), first half of a head against its second half."""

    needs_state = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.rotary is not None
        self.register_buffer("frequencies", rotary_frequencies(config.rotary, config.head_size), persistent=False)

    def rotary(self, position: Any, ops: TorchOps = TORCH) -> Rotary:
        angles = ops.unsqueeze(_angles(position, self.frequencies, ops), -2)
        return ops.cos(angles), ops.sin(angles)


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


def _angles(position: Any, frequencies: Any, ops: TorchOps) -> Any:
    """position (…), frequencies (F) -> (…, F), float32."""
    return ops.mul(ops.unsqueeze(ops.cast(position, "float32"), -1), ops.parameter(frequencies))
