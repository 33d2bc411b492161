"""Attention with linear biases (ALiBi, Press et al. 2021, arXiv 2108.12409, section 3): a score of a key that stands n
tokens behind the query falls by n times the head's slope. Distances are all that it sees, so nothing ends."""

from __future__ import annotations

import math

import numpy as np

from t2r_export.config.positions.alibi import AlibiConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.base import Known, Positions


class Alibi(Positions):
    """-slope · distance."""

    def __init__(self, config: AlibiConfig, size: int) -> None:
        super().__init__(config, size)
        self.slopes = slopes(size, config.max_bias)
        self.name = f"alibi_{config.max_bias:g}_{size}"

    def score_bias(self, distance: T, ops: Ops[T]) -> T:
        return ops.mul(distance, ops.constant(-self.slopes[:, None, None], "float32", f"{self.name}_slopes"))

    def known_bias(self, distance: Known) -> Known:
        return -self.slopes[:, None, None] * distance


def slopes(heads: int, max_bias: float) -> Known:
    """A slope for each head: 2^(-max_bias · i/n) for i = 1 … n, with n the next power of two; of n > heads slopes every
    second, then of those left the first ones, as the authors' code has them."""
    n = 1 << math.ceil(math.log2(heads))
    found = 2.0 ** (-max_bias / n * np.arange(1, n + 1))
    return found if n == heads else np.concatenate([found[1::2], found[::2]])[:heads]
