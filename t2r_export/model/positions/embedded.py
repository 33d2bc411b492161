"""Positions added to the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.positions import LearnedConfig, SinusoidalConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.positions.turns import rotation_at, rotation_table
from t2r_runtime.errors import UserError


class LearnedPositions(Positions):
    """A trained vector per position, up to `max_positions`."""

    def __init__(self, config: LearnedConfig, size: int) -> None:
        super().__init__(config, size)
        self.table = nn.Embedding(config.max_positions, size)

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

    def __init__(self, config: SinusoidalConfig, size: int) -> None:
        super().__init__(config, size)
        steps = torch.arange(0, size, 2, dtype=torch.float64, device="cpu")
        self.register_buffer("table", rotation_table(10000.0 ** (-steps / size)), persistent=False)

    def embed(self, x: T, position: T, ops: Ops[T]) -> T:
        cos, sin = rotation_at(position, self.table, ops)
        return ops.add(x, ops.squeeze(ops.concat([sin, cos]), -2))
