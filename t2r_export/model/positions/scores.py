"""Positions in the scores of attention: the interface written once."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor, nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.positions import POSITIONS
from t2r_export.config.tagged import resolve
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Pairs


class ScorePositions(nn.Module):
    """What a kind of position makes of the scores of queries and keys. It sees distances alone, so nothing ends.

    Args:
        heads: whose `positions` are of the kind.
        scale: of q.
    """

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale

    def queries(self, q: T, ops: Ops[T]) -> T:
        """What meets keys, of q (B, H, T, d), both unscaled."""
        return q

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        """The scores of `pairs`, with their mask.

        Args:
            scores: scaled products of queries and keys, soft-capped where the model does that, as `pairs` has them.
            q: (B, H, T, d), unscaled, before `queries`.
        """
        raise NotImplementedError


class DistanceBias(ScorePositions):
    """A number that is added to scores, of each head and distance."""

    @property
    def key(self) -> Hashable:
        """Of what layers with equal biases share."""
        raise NotImplementedError

    def bias(self, pairs: Pairs[T], ops: Ops[T]) -> T:
        """The bias, as scores are laid out."""
        raise NotImplementedError

    def by_distance(self, length: int) -> Tensor:
        """The bias (H, length) of distances 0, …, length - 1."""
        raise NotImplementedError

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        return ops.add(scores, pairs.shared(self.key, lambda: pairs.masked(self.bias(pairs, ops))))


def build_scores(heads: HeadsConfig, scale: float) -> ScorePositions | None:
    """The positions in the scores of these heads; None: there are none."""
    config = heads.positions
    if config is None or not config.biases:
        return None
    made: ScorePositions = resolve(POSITIONS[config.kind].model)(heads, scale)
    return made
