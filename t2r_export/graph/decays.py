"""Decay of earlier tokens within a piece, as graph nodes. Formulas are in t2r_export.model.decays."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from t2r_export.graph.pieces import Pieces
from t2r_export.graph.recorder import Value
from t2r_export.model.decays import halves


class Decay:
    """No decay. Keys are (X, C, K); `rows` are queries from `Pieces.rows`, or have the layout of keys."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces, self.ops = pieces, pieces.ops

    @property
    def carry(self) -> Value | None:
        """Γ_C0, the decay of the incoming state over the piece: (X, 1, 1), (X, K, 1), or None for no decay."""
        return None

    def scores(self, rows: Value, keys: Value) -> Value:
        """rows_iᵀ Γ_ij keys_j for j <= i, else 0: (X, rows, C)."""
        products = self.ops.matmul(rows, self.transposed(keys))
        return self.pieces.masked(products, "causal", np.tri(self.pieces.capacity))

    def from_start(self, rows: Value) -> Value:
        """rows_i Γ_i0."""
        return rows

    def to_end(self, keys: Value) -> Value:
        """Γ_Cj keys_j, transposed (X, K, C); zero for tokens that do not enter the state."""
        return self.transposed(self.pieces.of_kept(keys))

    def transposed(self, x: Value) -> Value:
        """x (X, C, n) -> (X, n, C)."""
        return self.ops.transpose(x, (0, 1, 2, 4, 3))


class HeadDecay(Decay):
    """Args: log_gate: (X, C, 1)."""

    def __init__(self, pieces: Pieces, log_gate: Value) -> None:
        super().__init__(pieces)
        self.log_gate = log_gate

    @property
    def carry(self) -> Value | None:
        return self.pieces.last(self._left[0])

    def scores(self, rows: Value, keys: Value) -> Value:
        products = self.ops.matmul(rows, self.transposed(keys))
        return self.pieces.by_head(products, self._left[1])

    def from_start(self, rows: Value) -> Value:
        return self.pieces.by_head(rows, self._left[0])

    def to_end(self, keys: Value) -> Value:
        return self.ops.mul(self.transposed(keys), self.pieces.last(self._left[1]))

    @cached_property
    def _left(self) -> tuple[Value, Value]:
        """Γ_i0 (X, C, 1) and Γ_ij (X, C, C), 0 for j > i: exponentials of sums that are at most 0."""
        pieces, ops, C = self.pieces, self.ops, self.pieces.capacity
        sums = np.tri(C)  # a product with a triangular matrix of ones sums the gates from j + 1 to i
        taken = np.concatenate([np.ones((C, 1)), np.tri(C, k=-1)], axis=1)
        seen = np.concatenate([np.ones((C, 1)), sums], axis=1)
        spread = ops.mul(self.log_gate, pieces.square(f"later_{C}", taken))
        left = ops.exp(ops.matmul(pieces.causal(), spread))
        start, share = pieces.first_and_rest(ops.mul(left, pieces.square(f"causal_from_start_{C}", seen)))
        return start, share


class ChannelDecay(Decay):
    """Args: log_gate: (X, C, K)."""

    def __init__(self, pieces: Pieces, log_gate: Value) -> None:
        super().__init__(pieces)
        self.log_gate = log_gate

    @property
    def carry(self) -> Value | None:
        ops, (*X, _, K) = self.ops, self._of_kept.shape
        sums = ops.emit("ReduceSum", [self._of_kept, ops.constant([-2], "int64")], (*X, K), keepdims=0)
        return ops.exp(ops.unsqueeze(sums, -1))

    def scores(self, rows: Value, keys: Value) -> Value:
        ops, pieces, C = self.ops, self.pieces, self.pieces.capacity
        found = pieces.masked(ops.matmul(rows, self.transposed(keys)), "own", np.eye(C))
        for number, ((pairs, _), reach) in enumerate(zip(halves(C), self._reaches, strict=True)):
            near = self.transposed(ops.mul(keys, reach))
            products = ops.matmul(pieces.by_head(rows, reach), near)
            found = ops.add(found, pieces.masked(products, f"half_{number}", pairs))
        return found

    def from_start(self, rows: Value) -> Value:
        return self.pieces.by_head(rows, self._start)

    def to_end(self, keys: Value) -> Value:
        # the constant is the left operand: quantizers would treat a right one as a weight
        later = self.pieces.square(f"after_{self.pieces.capacity}", np.tri(self.pieces.capacity, k=-1).T)
        return super().to_end(self.ops.mul(keys, self.ops.exp(self.ops.matmul(later, self._of_kept))))

    @cached_property
    def _start(self) -> Value:
        """Γ_i0 (X, C, K)."""
        return self.ops.exp(self.ops.matmul(self.pieces.causal(), self.log_gate))

    @cached_property
    def _of_kept(self) -> Value:
        """The log gates (X, C, K); 0 for tokens that do not enter the state."""
        return self.pieces.of_kept(self.log_gate)

    @cached_property
    def _reaches(self) -> list[Value]:
        """For each block size, the decay between a token and the middle of its block (X, C, K)."""
        C = self.pieces.capacity
        squares = (self.pieces.square(f"to_middle_{n}_{C}", sums) for n, (_, sums) in enumerate(halves(C)))
        return [self.ops.exp(self.ops.matmul(square, self.log_gate)) for square in squares]


def decay_of(pieces: Pieces, log_gate: Value | None) -> Decay:
    """Args: log_gate: (B or 1, G, T or 1, 1 or K)."""
    if log_gate is None:
        return Decay(pieces)
    gates = pieces.per_token(log_gate)
    return (HeadDecay if gates.shape[-1] == 1 else ChannelDecay)(pieces, gates)
