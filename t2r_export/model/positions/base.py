"""What a kind of position offers: the interface written once."""

from __future__ import annotations

from torch import nn

from t2r_export.config.positions import POSITIONS, PositionConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.turns import Rotation
from t2r_runtime.contract.signature import wrap_length


class Positions(nn.Module):
    """Positions of rows or rotations. Of the hooks `embed` and `rotate` a kind has one; this class has none of them.

    Positions in scores are `ScorePositions`.

    Args:
        config: the kind's; None: no positions.
        size: of the rows that are embedded, or the numbers that rotate.
    """

    magnitude = 1.0  # of the cosines and sines of a rotation
    past_end = "refuse"  # clamp: every position past a table's end is its last one; wrap:N: all are modulo N

    def __init__(self, config: PositionConfig | None, size: int) -> None:
        super().__init__()

    @property
    def wrap(self) -> int | None:
        """N of wrap:N."""
        return wrap_length(self.past_end)

    def embed(self, x: T, position: T, ops: Ops[T]) -> T:
        """Token embeddings, rows (N, D), with what their position (N,) adds to them."""
        return x

    def rotate(self, position: T, ops: Ops[T]) -> Rotation[T]:
        """cos and sin (B, 1, T, F) by which q and k rotate at positions (B, T)."""
        raise NotImplementedError

    def rotate_known(self, start: int, stop: int, ops: Ops[T], name: str) -> Rotation[T]:
        """The same at start, …, stop - 1, known beforehand: constants (stop - start, F), stored under `name`."""
        raise NotImplementedError


def build_positions(config: PositionConfig | None, size: int) -> Positions:
    """The positions that `config` describes; `size` as in `Positions`."""
    made: Positions = (Positions if config is None else resolve(POSITIONS[config.kind].model))(config, size)
    return made
