"""Rotary positions (Su et al. 2021, arXiv 2104.09864), with any scaling of frequencies."""

from __future__ import annotations

import torch
from torch import Tensor

from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import plain
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.positions.turns import Rotation, rotation_at, rotation_table


class Rotary(Positions):
    """Rotates q and k by position · frequency, pairing the first half of a head's rotated dimensions with the second.
    Shared by all layers with equal frequencies."""

    table: Tensor  # (DIGITS · BASE, 2F)

    def __init__(self, config: RotaryConfig, size: int) -> None:
        super().__init__(config, size)
        self.frequencies = rotary_frequencies(config, size)
        self.magnitude = 1.0 if config.scaling is None else config.scaling.magnitude
        self.register_buffer("table", rotation_table(self.frequencies, self.magnitude), persistent=False)
        self._known: dict[tuple[int, int], Tensor] = {}

    def rotate(self, position: T, ops: Ops[T]) -> Rotation[T]:
        cos, sin = rotation_at(position, self.table, ops)  # (B, T, 1, F)
        size = self.table.shape[1] // 2
        return Rotation(*(ops.reshape(part, (0, 1, -1, size)) for part in (cos, sin)))

    def rotate_known(self, start: int, stop: int, ops: Ops[T], name: str) -> Rotation[T]:
        if (start, stop) not in self._known:
            angles = torch.arange(start, stop, dtype=torch.float64, device="cpu")[:, None] * self.frequencies.double()
            self._known[start, stop] = torch.cat([angles.cos(), angles.sin()], dim=1) * self.magnitude
        table = ops.constant(self._known[start, stop].numpy(), "float32", f"{name}_{start}_{stop}")
        return Rotation(*ops.split(table, [len(self.frequencies)] * 2))


def rotary_frequencies(config: RotaryConfig, size: int) -> Tensor:
    """Frequencies (size/2), float32, with the scaling for long contexts that the checkpoint was trained with."""
    # float32 throughout, as in the code that trained the checkpoints: float64 would be a different model
    # on the CPU even for models on the meta device, because frequencies are computed, not loaded
    pairs = torch.arange(0, size, 2, dtype=torch.int64, device="cpu").float()
    scaled = plain if config.scaling is None else config.scaling.frequencies
    frequencies: Tensor = scaled(config.theta, pairs, size)
    return frequencies
