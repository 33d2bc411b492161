"""T5's relative positions (Raffel et al. 2020, arXiv 1910.10683, section 2.1): a learned bias per head and bucket of
distances is added to the scores.

Of B buckets, all for keys behind the query, the first E = ⌊B/2⌋ have one distance each. A larger distance n is in
bucket E + ⌊ln(n/E) / ln(N/E) · (B - E)⌋, at most B - 1, with N the largest distance, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor, nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.positions import T5Config
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Known, Pairs
from t2r_export.model.positions.scores import DistanceBias


class T5(DistanceBias):
    """A table (buckets, H) per layer."""

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__(heads, scale)
        assert isinstance(heads.positions, T5Config)
        self.config = heads.positions
        self.table = nn.Embedding(self.config.buckets, heads.heads)

    @property
    def key(self) -> Hashable:
        return self  # each layer has its own weights

    def bias(self, pairs: Pairs[T], ops: Ops[T]) -> T:
        last, name = self.config.max_distance, f"t5_buckets_{self.config.buckets}_{self.config.max_distance}"
        found = ops.constant(buckets(np.arange(last + 1), self.config), "int32", name)
        table = ops.embedding(found, self.table.weight)  # (last + 1, H)
        rows = ops.embedding(pairs.places(last), table)  # (T, n, H) or (B, 1, T, n, H)
        if len(rows.shape) == 3:
            return pairs.spread(ops.transpose(rows, (2, 0, 1)))
        return pairs.spread(ops.squeeze(ops.transpose(rows, (0, 4, 2, 3, 1)), 4))

    def by_distance(self, length: int) -> Tensor:
        found = torch.from_numpy(buckets(np.arange(length), self.config)).to(self.table.weight.device)
        return self.table.weight[found].T


def buckets(distance: Known, config: T5Config) -> Known:
    """The bucket of each distance, integers from 0."""
    exact = config.buckets // 2
    share = np.log(np.maximum(distance, exact) / exact) / np.log(config.max_distance / exact)
    # 1e-9: a distance at the lower edge of a bucket belongs to it despite rounding of logarithms
    far = exact + np.floor(share * (config.buckets - exact) + 1e-9).astype(np.int64)
    return np.where(distance < exact, distance, np.minimum(far, config.buckets - 1))
