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

from functools import cached_property, lru_cache
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from t2r_export.model.pieces import Pieces, triangle
from t2r_export.model.primitives import T


class Decay(Generic[T]):
    """No decay. Keys are (X, C, K); `rows` are queries from `Pieces.rows`, or have the layout of keys."""

    def __init__(self, pieces: Pieces[T]) -> None:
        self.pieces, self.ops = pieces, pieces.ops

    @property
    def carry(self) -> T | None:
        """Γ_C0, the decay of the incoming state over the piece: (X, 1, 1), (X, K, 1), or None for no decay."""
        return None

    def scores(self, rows: T, keys: T) -> T:
        """rows_iᵀ Γ_ij keys_j for j <= i, else 0: (X, rows, C)."""
        products = self.ops.matmul(rows, self.pieces.transposed(keys))
        return self.pieces.masked(products, "causal", triangle(self.pieces.capacity))

    def from_start(self, rows: T) -> T:
        """rows_i Γ_i0."""
        return rows

    def to_end(self, keys: T) -> T:
        """Γ_Cj keys_j, transposed (X, K, C); zero for tokens that do not enter the state."""
        return self.pieces.transposed(self.pieces.of_kept(keys))


class HeadDecay(Decay[T]):
    """Args: log_gate: (X, C, 1)."""

    def __init__(self, pieces: Pieces[T], log_gate: T) -> None:
        super().__init__(pieces)
        self.log_gate = log_gate

    @property
    def carry(self) -> T | None:
        return self.pieces.last(self._left[0])

    def scores(self, rows: T, keys: T) -> T:
        products = self.ops.matmul(rows, self.pieces.transposed(keys))
        return self.pieces.by_head(products, self._left[1])

    def from_start(self, rows: T) -> T:
        return self.pieces.by_head(rows, self._left[0])

    def to_end(self, keys: T) -> T:
        return self.ops.mul(self.pieces.transposed(keys), self.pieces.last(self._left[1]))

    @cached_property
    def _left(self) -> tuple[T, T]:
        """Γ_i0 (X, C, 1) and Γ_ij (X, C, C), 0 for j > i: exponentials of sums that are at most 0."""
        pieces, ops, C = self.pieces, self.ops, self.pieces.capacity
        taken, seen = from_start(C)
        # a product with a triangular matrix of ones sums the gates from j + 1 to i
        spread = ops.mul(self.log_gate, pieces.square(f"later_{C}", taken))
        left = ops.exp(ops.matmul(pieces.causal(), spread))
        start, share = pieces.first_and_rest(ops.mul(left, pieces.square(f"causal_from_start_{C}", seen)))
        return start, share


class ChannelDecay(Decay[T]):
    """Args: log_gate: (X, C, K)."""

    def __init__(self, pieces: Pieces[T], log_gate: T) -> None:
        super().__init__(pieces)
        self.log_gate = log_gate

    @property
    def carry(self) -> T | None:
        return self.ops.exp(self.pieces.total(self._of_kept))

    def scores(self, rows: T, keys: T) -> T:
        ops, pieces, C = self.ops, self.pieces, self.pieces.capacity
        found = pieces.masked(ops.matmul(rows, self.pieces.transposed(keys)), "own", np.eye(C))
        for number, ((pairs, _), reach) in enumerate(zip(halves(C), self._reaches, strict=True)):
            near = self.pieces.transposed(ops.mul(keys, reach))
            products = ops.matmul(pieces.by_head(rows, reach), near)
            found = ops.add(found, pieces.masked(products, f"half_{number}", pairs))
        return found

    def from_start(self, rows: T) -> T:
        return self.pieces.by_head(rows, self._start)

    def to_end(self, keys: T) -> T:
        # the constant is the left operand: quantizers would treat a right one as a weight
        later = self.pieces.square(f"after_{self.pieces.capacity}", triangle(self.pieces.capacity, -1).T)
        return super().to_end(self.ops.mul(keys, self.ops.exp(self.ops.matmul(later, self._of_kept))))

    @cached_property
    def _start(self) -> T:
        """Γ_i0 (X, C, K)."""
        return self.ops.exp(self.ops.matmul(self.pieces.causal(), self.log_gate))

    @cached_property
    def _of_kept(self) -> T:
        """The log gates (X, C, K); 0 for tokens that do not enter the state."""
        return self.pieces.of_kept(self.log_gate)

    @cached_property
    def _reaches(self) -> list[T]:
        """For each block size, the decay between a token and the middle of its block (X, C, K)."""
        C = self.pieces.capacity
        squares = (self.pieces.square(f"to_middle_{n}_{C}", sums) for n, (_, sums) in enumerate(halves(C)))
        return [self.ops.exp(self.ops.matmul(square, self.log_gate)) for square in squares]


def decay_of(pieces: Pieces[T], log_gate: T | None) -> Decay[T]:
    """Args: log_gate: (B or 1, G, T or 1, 1 or K)."""
    if log_gate is None:
        return Decay(pieces)
    gates = pieces.per_token(log_gate)
    return (HeadDecay if gates.shape[-1] == 1 else ChannelDecay)(pieces, gates)


@lru_cache(maxsize=16)
def from_start(size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """For a chunk and its start as column 0, two 0/1 matrices (size, size + 1): [i, j] is 1 if gate i is after token j;
    1 if token i is at or after token j."""
    ones = np.ones((size, 1), np.float32)
    return np.hstack([ones, triangle(size, -1)]), np.hstack([ones, triangle(size)])


@lru_cache(maxsize=16)
def halves(size: int) -> tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]:
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
        found.append((pairs.astype(np.float32), sums.astype(np.float32)))
        half *= 2
    return tuple(found)
