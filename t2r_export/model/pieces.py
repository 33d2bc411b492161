"""Pieces of a sequence: the tokens whose linear attention is computed in parallel (t2r_export.model.recurrences)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, Generic

import numpy as np

from t2r_export.model.primitives import Primitives, T


@lru_cache(maxsize=64)
def triangle(size: int, diagonal: int = 0) -> np.ndarray[Any, Any]:
    """(size, size), 1 up to a diagonal and 0 above, float32: torch shares the memory of the array."""
    return np.tri(size, k=diagonal, dtype=np.float32)


class Pieces(ABC, Generic[T]):
    """N pieces of C tokens each, for H query heads that share G key heads; X stands for the axes B, G and N.

    Args:
        capacity: size of the constants, at least C.
    """

    def __init__(self, ops: Primitives[T], capacity: int) -> None:
        self.ops, self.capacity = ops, capacity

    @abstractmethod
    def cut(self, x: T) -> T:
        """x (B, G, T, n) -> (X, C, n)."""

    @abstractmethod
    def per_token(self, x: T) -> T:
        """Gates (B, G, T, n), or gates that tokens share (1, G, 1, n) -> (X, C, n)."""

    @abstractmethod
    def with_ones(self, v: T) -> T:
        """v (B, G, T, V) -> (X, C, V + 1), the last column of ones."""

    @abstractmethod
    def rows(self, q: T, kv_heads: int) -> T:
        """q (B, H, T, K) -> rows, the left operand of products with keys (X, K, C) for all H / G heads of a group."""

    @abstractmethod
    def heads(self, rows: T, heads: int) -> T:
        """Inverse of `rows` for any last axis -> (B, H, T, ·)."""

    @abstractmethod
    def by_head(self, rows: T, factor: T) -> T:
        """Rows times a factor (X, C, ·), the same for each head of a group."""

    @abstractmethod
    def square(self, name: str, array: np.ndarray[Any, Any]) -> T:
        """A constant (capacity, capacity or one more) for C tokens."""

    @abstractmethod
    def masked(self, scores: T, name: str, array: np.ndarray[Any, Any]) -> T:
        """Scores of rows (X, rows, C) times a constant (capacity, capacity), the same for each head of a group."""

    def causal(self) -> T:
        """Causal mask: 1 where a token sees another (itself and earlier ones)."""
        return self.square(f"causal_1x{self.capacity}", triangle(self.capacity))

    @abstractmethod
    def transposed(self, x: T) -> T:
        """x (X, C, n) -> (X, n, C)."""

    def first_and_rest(self, x: T) -> list[T]:
        """x (X, C, 1 + C) -> (X, C, 1) and (X, C, C)."""
        return self.ops.split(x, [1, self.capacity])

    def last(self, x: T) -> T:
        """x (X, C, n) -> (X, 1, n), at the last token that enters the state."""
        return self.ops.split(x, [self.capacity - 1, 1], axis=-2)[1]

    @abstractmethod
    def total(self, x: T) -> T:
        """x (X, C, n) -> its sum over the tokens (X, n, 1)."""

    def of_kept(self, k: T) -> T:
        """k (X, C, n), zero for tokens that do not enter the state."""
        return k

    def add_product(self, x: T, a: T, b: T, sign: int = 1) -> T:
        """x + sign · a b, of matrices on the last two axes."""
        return (self.ops.add if sign > 0 else self.ops.sub)(x, self.ops.matmul(a, b))

    @abstractmethod
    def solve(self, system: T, right: T) -> T:
        """The solution x (X, C, n) of system · x = right.

        Args:
            system: unit lower triangular (X, C, C); the diagonal and above are not read.
        """

    @abstractmethod
    def states(self, start: T, added: T, carry: T | None) -> tuple[T, T]:
        """The states before each piece (X, K, W), and after the last (B, G, K, W).

        Args:
            start: (B, G, K, W). added: (X, K, W), the contribution of each piece.
            carry: how each piece transforms the incoming state: not at all (None), by factors (X, 1 or K, 1), or by a
            matrix (X, K, K).
        """
