"""What is left of earlier tokens inside a chunk, Γ_ij = g_{j+1} ⋯ g_i: no decay, one a head, or one a key channel.

Every product is an exponential of a sum over its own log gates ("segsum", Dao and Gu 2024, arXiv 2405.21060), so a
decay to nothing neither overflows nor costs its neighbours precision. Differences of two cumulative sums would do both.

With one decay a channel, q_iᵀ Γ_ij k_j is no product of a matrix with a mask. Pairs are split by halves instead: of a
block of 2b tokens, i in the upper half sees j in the lower half through the boundary m between them,

    q_iᵀ Γ_ij k_j = (q_i ⊙ Γ_im) · (k_j ⊙ Γ_mj),    both factors at most 1,

and blocks of 2, 4, 8 … tokens meet every pair once. That is log₂ C products a chunk and no tensor of C · C · K numbers
(compare the secondary chunks of Yang et al. 2024, arXiv 2312.06635, section 4.3).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


class Decay:
    """No decay. X chunks of C tokens; `rows` may be several rows a token, one below the other: n · C.

    Attributes:
        carry: Γ_C0, what the chunk leaves of the state before it: (X, 1, 1), (X, K, 1), or None for all.
    """

    carry: Tensor | None = None

    def __init__(self, size: int, like: Tensor) -> None:
        # a product with a mask: tril of a batch is several times slower on the CPU
        self.share = torch.ones(size, size, dtype=like.dtype, device=like.device).tril()

    def scores(self, rows: Tensor, keys: Tensor, rate: Tensor | None = None) -> Tensor:
        """rows_iᵀ Γ_ij keys_j for j <= i, else 0: rows (X, n·C, K), keys (X, C, K) -> (X, n·C, C).

        Args:
            rate: (X, n·C, 1), what each row is multiplied by.
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
    """For blocks of 2, 4, 8 … of `size` tokens: the pairs of their halves, and the gates from each token to the middle.

    Returns:
        Of each, two matrices (size, size) of 0 and 1: row i, column j, where i in the upper half of a block sees j in
        the lower; and row i, column t, where gate t is one of those between token i and the middle.
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
