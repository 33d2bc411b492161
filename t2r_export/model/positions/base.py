"""The interface of position encodings."""

from __future__ import annotations

from torch import nn

from t2r_export.config.positions import POSITIONS, PositionConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.turns import Rotation
from t2r_runtime.contract.signature import wrap_length


class Positions(nn.Module):
    """Positions of rows or rotations. A subclass implements `embed` or `rotate`; this class implements neither.

    For positions in scores see `ScorePositions`.

    Args:
        config: config of the kind; None: no positions.
        size: size of embedded rows, or number of rotated dimensions.
    """

    magnitude = 1.0  # factor of a rotation's cosines and sines
    past_end = "refuse"  # clamp: positions past a table's end use its last row; wrap:N: positions modulo N

    def __init__(self, config: PositionConfig | None, size: int) -> None:
        super().__init__()

    @property
    def wrap(self) -> int | None:
        """N of wrap:N."""
        return wrap_length(self.past_end)

    def embed(self, x: T, position: T, ops: Ops[T]) -> T:
        """Add positions (N,) to token embeddings, rows (N, D)."""
        return x

    def rotate(self, position: T, ops: Ops[T]) -> Rotation[T]:
        """cos and sin (B, 1, T, F) of the rotation of q and k at positions (B, T)."""
        raise NotImplementedError

    def rotate_known(self, start: int, stop: int, ops: Ops[T], name: str) -> Rotation[T]:
        """cos and sin at the static positions start, …, stop - 1: constants (stop - start, F) stored under `name`."""
        raise NotImplementedError


def build_positions(config: PositionConfig | None, size: int) -> Positions:
    """The positions that `config` describes; `size` as in `Positions`."""
    made: Positions = (Positions if config is None else resolve(POSITIONS[config.kind].model))(config, size)
    return made
