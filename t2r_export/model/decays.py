"""Decay within a chunk, Γ_ij = g_{j+1} ⋯ g_i: none, per head, or per key channel.

Each product is the exponential of a sum of its own log gates ("segsum", Dao and Gu 2024, arXiv 2405.21060), which is
numerically stable for strong decays, unlike differences of cumulative sums.

With a decay per channel, q_iᵀ Γ_ij k_j is not a masked matrix product. Pairs are split by halves instead: in a block of
2b tokens, i in the upper half sees j in the lower half through the boundary m,

    q_iᵀ Γ_ij k_j = (q_i ⊙ Γ_im) · (k_j ⊙ Γ_mj),    both factors at most 1,

and blocks of 2, 4, 8 … tokens cover every pair once: log₂ C products per chunk and no (C, C, K) tensor (compare the
secondary chunks of Yang et al. 2024, arXiv 2312.06635, section 4.3).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


class Decay:
    """No decay. X chunks of C tokens; `rows` can have n rows per token, stacked: n · C.

    Attributes:
        carry: Γ_C0, the decay of the incoming state: (X, 1, 1), (X, K, 1), or None for no decay.
    """

    carry: Tensor | None = None

    def __init__(self, size: int, like: Tensor) -> None:
        # a mask, because batched tril is several times slower on the CPU
        self.share = torch.ones(size, size, dtype=like.dtype, device=like.device).tril()

    def scores(self, rows: Tensor, keys: Tensor, rate: Tensor | None = None) -> Tensor:
        """rows_iᵀ Γ_ij keys_j for j <= i, else 0: rows (X, n·C, K), keys (X, C, K) -> (X, n·C, C).

        Args:
            rate: (X, n·C, 1), factors of the rows.
        """
        products = torch.bmm(rows, keys.mT)
        products = products if rate is None else rate * products
        return products * self.share.repeat(*[1] * (self.share.ndim - 2), rows.shape[1] // self.share.shape[-1], 1)

    def from_start(self, rows: Tensor) -> Tensor:
        """rows_i Γ_i0 (X, n·C, K)."""
        return rows

    def to_end(self, keys: Tensor) -> Tensor:
        """Γ_Cj keys_j (X, C, K)."""
        return keys


class HeadDecay(Decay):
    """Args: log_gate: (X, C, 1)."""

    def __init__(self, log_gate: Tensor) -> None:
        left = _left(log_gate)  # (X, C+1, C+1); 0 is the chunk's start
        self.share, self.start = left[:, 1:, 1:], left[:, 1:, :1]
        self.end, self.carry = left[:, -1, 1:, None], left[:, -1:, :1]

    def from_start(self, rows: Tensor) -> Tensor:
        return rows * self.start.repeat(1, rows.shape[1] // self.start.shape[1], 1)

    def to_end(self, keys: Tensor) -> Tensor:
        return keys * self.end


class ChannelDecay(HeadDecay):
    """Args: log_gate: (X, C, K)."""

    def __init__(self, log_gate: Tensor) -> None:
        lower = torch.ones(log_gate.shape[1], log_gate.shape[1], dtype=log_gate.dtype, device=log_gate.device).tril()
        self.log_gate = log_gate
        self.start = (lower @ log_gate).exp()
        self.end = ((1 - lower) @ log_gate).exp()
        self.carry = self.start[:, -1, :, None]

    def scores(self, rows: Tensor, keys: Tensor, rate: Tensor | None = None) -> Tensor:
        X, size, K = keys.shape
        rows = rows if rate is None else rate * rows
        n = rows.shape[1] // size
        found = (rows.view(X, n, size, K) * keys.unsqueeze(1)).sum(-1).diag_embed().view(X, n * size, size)
        for pairs, sums in halves(size):
            seen, added = (torch.from_numpy(m).to(self.log_gate) for m in (pairs, sums))
            reach = (added @ self.log_gate).exp()
            found = found + torch.bmm(rows * reach.repeat(1, n, 1), (keys * reach).mT) * seen.repeat(n, 1)
        return found


@lru_cache(maxsize=16)
def halves(size: int) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]:
    """Pairs and gate sums for blocks of 2, 4, 8 … of `size` tokens.

    Returns:
        Per block size, two 0/1 matrices (size, size): [i, j] is 1 if i is in the upper and j in the lower half of a
        block; [i, t] is 1 if gate t is between token i and the middle of its block.
    """
    row, column = np.indices((size, size))
    found, half = [], 1
    while half < size:
        upper = row // half % 2 == 1
        pairs = (row // half == column // half + 1) & upper
        sums = (row // half == column // half) & np.where(upper, column <= row, column > row)
        found.append((pairs.astype(np.float64), sums.astype(np.float64)))
        half *= 2
    return tuple(found)


def _left(log_gate: Tensor) -> Tensor:
    """log g (X, C, 1) -> Γ (X, C+1, C+1): Γ_ij = g_{j+1} ⋯ g_i for j ≤ i, counted from 1, and 0 for j > i."""
    size = log_gate.shape[1] + 1
    lower = torch.ones(size, size, dtype=log_gate.dtype, device=log_gate.device).tril()
    sums = (F.pad(log_gate, (0, 0, 1, 0)) * lower.tril(-1)).cumsum(1)
    return sums.exp() * lower
