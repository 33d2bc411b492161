"""Attention with linear biases (ALiBi, Press et al. 2021, arXiv 2108.12409, section 3): the score of a key n tokens
behind the query is lowered by n times the head's slope."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.positions.alibi import AlibiConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Known, Pairs
from t2r_export.model.positions.scores import DistanceBias


class Alibi(DistanceBias):
    """-slope · distance."""

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__(heads, scale)
        assert isinstance(heads.positions, AlibiConfig)
        self.slopes = slopes(heads.heads, heads.positions.max_bias)
        self.name = f"alibi_{heads.positions.max_bias:g}_{heads.heads}"

    @property
    def key(self) -> Hashable:
        return self.name

    def bias(self, pairs: Pairs[T], ops: Ops[T]) -> T:
        rates = -self.slopes[:, None, None]
        if pairs.known is not None:
            return pairs.spread_known(rates * pairs.known, self.name)
        return pairs.spread(ops.mul(pairs.distances(), ops.constant(rates, "float32", f"{self.name}_slopes")))

    def by_distance(self, length: int) -> Tensor:
        return torch.from_numpy(-self.slopes[:, None] * np.arange(length))


def slopes(heads: int, max_bias: float) -> Known:
    """A slope for each head: 2^(-max_bias · i/n) for i = 1 … n, with n the next power of two. For n > heads, every
    second slope, then the first of the others, as in the authors' code."""
    n = 1 << math.ceil(math.log2(heads))
    found = 2.0 ** (-max_bias / n * np.arange(1, n + 1))
    return found if n == heads else np.concatenate([found[1::2], found[::2]])[:heads]
