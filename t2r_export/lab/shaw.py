"""Relative positions of Shaw et al. 2018 (arXiv 1803.02155): a learned vector per distance is added to the key,

    e_ij = q_i · (k_j + a_n) / √d,    n = min(i - j, N)    (eq. 4)

which is q·k and q·a (eq. 5). The vectors are shared by the heads of a layer, as in the paper. Each query is multiplied
with the N + 1 vectors once; each pair gathers the product of its distance. The vectors a^V of values (eq. 3) are
omitted: in a sequence, each token would need sums of its weights per distance.
"""

from __future__ import annotations

from torch import nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.lab.config.positions import ShawConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Pairs
from t2r_export.model.positions.scores import ScorePositions


class Shaw(ScorePositions):
    """Adds q·a, with a table (N + 1, d) of vectors a."""

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__(heads, scale)
        assert isinstance(heads.positions, ShawConfig)
        self.last = heads.positions.max_distance
        self.table = nn.Embedding(self.last + 1, heads.head_size)

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        vectors = ops.transpose(ops.parameter(self.table.weight), (1, 0))
        products = pairs.rows(ops.matmul(ops.mul(q, self.scale), vectors))  # (…, rows, N + 1)
        return pairs.masked(ops.add(scores, pairs.at_distance(products, self.last)))
