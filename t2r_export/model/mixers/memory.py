"""Persistent memory: trained key/value pairs visible to every token (Sukhbaatar et al. 2019, arXiv 1907.01470).

In linear attention N pairs (m_k, m_v) act like a constant prefix, a sum:

    S_0 = Σ φ(m_k) m_vᵀ      z_0 = Σ φ(m_k)      o = φ(q)ᵀ(S + S_0) / guard(φ(q)·(z + z_0))

S_0 and z_0 are weights, added when a step reads the state. The state itself starts at zero, so that runtimes need no
special case.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.model.mixers.maps import FeatureMap
from t2r_export.model.ops import Ops, T


class Memory(nn.Module):
    """N pairs for each of G heads; if `folded`, their `sums`: S_0 with z_0 as the last column."""

    def __init__(self, heads: int, count: int, key_size: int, value_size: int, features: int, folded: bool) -> None:
        super().__init__()
        if folded:
            self.sums = nn.Parameter(torch.empty(heads, features, value_size + 1))
        else:
            self.k = nn.Parameter(torch.empty(heads, count, key_size))
            self.v = nn.Parameter(torch.empty(heads, count, value_size))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Keys with the scale of a projection, and zero values: only the denominator changes initially."""
        nn.init.normal_(self.k, std=self.k.shape[-1] ** -0.5)
        nn.init.zeros_(self.v)

    def collect(self, phi: FeatureMap, ops: Ops[T]) -> T:
        """S_0 and z_0 concatenated, (1, G, K, V + 1). Args: phi: the feature map of keys."""
        if not hasattr(self, "k"):
            return ops.unsqueeze(ops.parameter(self.sums), 0)
        keys = phi.of(ops.unsqueeze(ops.parameter(self.k), 0), False, ops)  # (1, G, N, K)
        keys = ops.transpose(keys, (0, 1, 3, 2))
        z = ops.mul(ops.mean(keys), float(self.k.shape[1]))
        return ops.concat([ops.matmul(keys, ops.parameter(self.v)), z])


def attend_memory(q: T, sums: T, ops: Ops[T]) -> tuple[T, T]:
    """φ(q) (B, H, T, K) and the result of `collect` -> φ(q)ᵀS_0 (B, H, T, V) and φ(q)·z_0 (B, H, T, 1)."""
    both = ops.matmul(ops.group_queries(q, sums.shape[1]), sums)
    numerator, denominator = ops.split(both, [sums.shape[-1] - 1, 1])
    return ops.ungroup_queries(numerator, q.shape[1]), ops.ungroup_queries(denominator, q.shape[1])
