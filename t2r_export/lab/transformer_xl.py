"""Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860, section 3.3):

    A_ij = (q_i + u)·k_j + (q_i + v)·W R_{i-j}

with learned u and v per head, sines and cosines R_n of the distance, and learned W (the paper's W_{k,R}). W R_n has the
heads of keys. Scores are A / √d.

In windows, where distances are static, W R_n is computed from weights and constants. With a growing cache, W is applied
to the query, so that a step does not project every distance.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions.pairs import Known, Pairs
from t2r_export.model.positions.scores import ScorePositions
from t2r_export.model.positions.turns import rotation_at, rotation_table


class TransformerXL(ScorePositions):
    """u, v (H, d) and W (G·d, D), with D = H·d sines and cosines."""

    turns: Tensor  # (DIGITS · BASE, D)

    def __init__(self, heads: HeadsConfig, scale: float) -> None:
        super().__init__(heads, scale)
        H, G, d = heads.heads, heads.kv_heads, heads.head_size
        self.width = H * d
        self.frequencies = 10000.0 ** (-np.arange(0, self.width, 2) / self.width)
        self.u, self.v = (nn.Parameter(torch.zeros(H, d)) for _ in range(2))
        self.project = nn.Linear(self.width, G * d, bias=False)
        frequencies = torch.from_numpy(self.frequencies).to("cpu")
        self.register_buffer("turns", rotation_table(frequencies), persistent=False)

    def queries(self, q: T, ops: Ops[T]) -> T:
        return ops.add(q, ops.unsqueeze(ops.parameter(self.u), 1))

    def scores(self, scores: T, q: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        q = ops.mul(ops.add(q, ops.unsqueeze(ops.parameter(self.v), 1)), self.scale)
        rows, in_order = pairs.rows(q), not ops.many  # in the order of the keys
        if pairs.last is None:
            found = self._of_cache(rows, pairs, ops)
        elif pairs.known is not None and in_order:
            found = self._of_constants(rows, pairs.known[0], pairs, ops)
        else:
            found, in_order = self._of_constants(rows, np.arange(pairs.last + 1), pairs, ops), False
        return pairs.masked(ops.add(scores, found if in_order else pairs.at_distance(found, pairs.last)))

    def _of_constants(self, rows: T, distances: Known, pairs: Pairs[T], ops: Ops[T]) -> T:
        """Products of rows (…, rows, d) and the projected static distances (m,): (…, rows, m)."""
        G, d, m = self.heads.kv_heads, self.heads.head_size, len(distances)
        angles = distances[:, None] * self.frequencies
        R = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        name = f"sinusoids_{self.width}_{distances[0]}_{distances[-1]}"
        keys = ops.linear(ops.constant(R, "float32", name), self.project.weight, None)  # (m, G·d)
        keys = ops.transpose(ops.reshape(keys, (m, G, d)), (1, 2, 0))
        return ops.matmul(rows, ops.unsqueeze(keys, 1) if pairs.chunked else keys)

    def _of_cache(self, rows: T, pairs: Pairs[T], ops: Ops[T]) -> T:
        """Products of rows (B, G, rows, d) and projected distances of a cache: (B, G, rows, P + T), for distances
        0, 1, …, or in a step for those of the keys."""
        G, d = self.heads.kv_heads, self.heads.head_size
        rows = ops.matmul(rows, ops.reshape(ops.parameter(self.project.weight), (G, d, self.width)))

        def sinusoids() -> T:
            assert pairs.ascending is not None
            distances = pairs.ascending
            if not ops.many:
                distances = ops.cast(ops.squeeze(pairs.distances(), 0), "int32")
            cos, sin = rotation_at(distances, self.turns, ops)  # (P + T, 1, D/2)
            return ops.transpose(ops.squeeze(ops.concat([sin, cos]), 1), (1, 0))

        return ops.matmul(rows, pairs.shared(("sinusoids", self.width), sinusoids))
