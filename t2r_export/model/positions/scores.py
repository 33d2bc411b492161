"""The interface of positions in attention scores."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor, nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.positions import POSITIONS
from t2r_export.config.tagged import resolve
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Pairs


class ScorePositions(nn.Module):
    """Positions in the scores of queries and keys. They depend only on distances, so there is no last position.

    Args:
        heads: config whose `positions` are of this kind.
        scale: scale of q.
    """

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale

    def queries(self, q: T, ops: Ops[T]) -> T:
        """The queries to multiply with keys, from q (B, H, T, d), both unscaled."""
        return q

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        """The scores of `pairs`, with their mask.

        Args:
            scores: scaled products of queries and keys, soft-capped if the model does so, in the layout of `pairs`.
            q: (B, H, T, d), unscaled, before `queries`.
        """
        raise NotImplementedError


class DistanceBias(ScorePositions):
    """A bias per head and distance, added to scores."""

    @property
    def key(self) -> Hashable:
        """Cache key, equal for layers with equal biases."""
        raise NotImplementedError

    def bias(self, pairs: Pairs[T], ops: Ops[T]) -> T:
        """The bias in the layout of the scores."""
        raise NotImplementedError

    def by_distance(self, length: int) -> Tensor:
        """The bias (H, length) for distances 0, …, length - 1."""
        raise NotImplementedError

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        return ops.add(scores, pairs.shared(self.key, lambda: pairs.masked(self.bias(pairs, ops))))


def build_scores(heads: HeadsConfig, scale: float) -> ScorePositions | None:
    """The positions in the scores of these heads, or None."""
    config = heads.positions
    if config is None or not config.biases:
        return None
    made: ScorePositions = resolve(POSITIONS[config.kind].model)(heads, scale)
    return made
