"""Persistent memory: trained keys and values that every token sees (Sukhbaatar et al. 2019, arXiv 1907.01470).

In linear attention N pairs (m_k, m_v) are no more than a sum, as if they were the first tokens of every text:

    S_0 = Σ φ(m_k) m_vᵀ      z_0 = Σ φ(m_k)      o = φ(q)ᵀ(S + S_0) / guard(φ(q)·(z + z_0))

S_0 and z_0 are weights. A step reads them beside the state, which starts at zero as ever: a runtime need not know of
them, every sequence of a batch shares them, and S holds what was read and nothing else.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.model.mixers.feature_maps import FeatureMap
from t2r_export.model.ops import Ops, T


class Memory(nn.Module):
    """N pairs of each of G heads, or where `folded` what they come to: `sums`, S_0 with z_0 as its last column."""

    def __init__(self, heads: int, count: int, key_size: int, value_size: int, features: int, folded: bool) -> None:
        super().__init__()
        if folded:
            self.sums = nn.Parameter(torch.empty(heads, features, value_size + 1))
        else:
            self.k = nn.Parameter(torch.empty(heads, count, key_size))
            self.v = nn.Parameter(torch.empty(heads, count, value_size))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Keys like a fresh projection's, and values of zero: a model that gets a memory starts without anything in
        it, but for the weight of the keys in the denominator."""
        nn.init.normal_(self.k, std=self.k.shape[-1] ** -0.5)
        nn.init.zeros_(self.v)

    def collect(self, phi: FeatureMap, ops: Ops[T]) -> T:
        """S_0 and z_0 side by side, (1, G, K, V + 1), with the layer's φ of keys."""
        if not hasattr(self, "k"):
            return ops.unsqueeze(ops.parameter(self.sums), 0)
        keys = phi.of(ops.unsqueeze(ops.parameter(self.k), 0), False, ops)  # (1, G, N, K)
        keys = ops.transpose(keys, (0, 1, 3, 2))
        z = ops.mul(ops.mean(keys), float(self.k.shape[1]))
        return ops.concat([ops.matmul(keys, ops.parameter(self.v)), z])


def attend_memory(q: T, sums: T, ops: Ops[T]) -> tuple[T, T]:
    """φ(q) (B, H, T, K) and what `collect` gave -> φ(q)ᵀS_0 (B, H, T, V) and φ(q)·z_0 (B, H, T, 1)."""
    both = ops.matmul(ops.group_queries(q, sums.shape[1]), sums)
    numerator, denominator = ops.split(both, [sums.shape[-1] - 1, 1])
    return ops.ungroup_queries(numerator, q.shape[1]), ops.ungroup_queries(denominator, q.shape[1])
