"""DA-Transformer (Wu et al. 2021, arXiv 2010.06925): positive scores, scaled by a function of the distance n,

    relu(q·k / √d) f(n),    f(n) = (1 + exp(v)) / (1 + exp(v - w n))

with learned w and v per head. f(0) is 1; f falls to 0 for w < 0, and grows to 1 + exp(v) for w > 0.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Pairs
from t2r_export.model.positions.scores import ScorePositions


class DATransformer(ScorePositions):
    """w and v (H), initially 0, so that f is 1."""

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__(heads, scale)
        self.w, self.v = (nn.Parameter(torch.zeros(heads.heads)) for _ in range(2))

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        w, v = (ops.reshape(ops.parameter(weight), (-1, 1, 1)) for weight in (self.w, self.v))
        share = ops.sigmoid(ops.sub(ops.mul(pairs.distances(), w), v))
        factor = ops.mul(share, ops.add(ops.exp(v), 1.0))
        return pairs.masked(ops.mul(ops.relu(scores), pairs.spread(factor)))
