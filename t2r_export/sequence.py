"""Linear attention over many tokens in a graph: the recurrence as matrix products over chunks, in ordinary operators.

The usual way is a loop in the graph. Here all chunks of 64 tokens are computed side by side, as in
`t2r_export.mixers.recurrences`, and a cumulative sum carries the state from each to the next: the work is linear in T,
and T may be any number. The last chunk is filled up with zero keys, which add nothing to the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from t2r_export.ops import NoParallelForm

if TYPE_CHECKING:
    from t2r_export.graph import Dim, GraphOps, Value

CHUNK = 64  # tokens; from 64 to 128 the time was the same within the noise, and 512 took a quarter longer


@dataclass(frozen=True)
class Prompt:
    """The input of a graph that reads many tokens at once."""

    batch: Dim
    length: Dim  # a letter
    sizes: Value  # (2): batch and length
    tokens: Value  # (1): the length
    rest: Value  # (1): how many tokens the last chunk lacks

    @property
    def rows(self) -> Dim:
        """One a token: B·T."""
        return self.length if self.batch == 1 else f"{self.batch}*{self.length}"

    @staticmethod
    def of(x: Value, ops: GraphOps) -> Prompt:
        """For x (B, T, D)."""
        sizes = ops.emit("Shape", [x], (2,), "int64", end=2)
        tokens = ops.emit("Shape", [x], (1,), "int64", start=1, end=2)
        rest = ops.emit("Mod", [ops.emit("Neg", [tokens], (1,)), ops.constant([CHUNK], "int64")], (1,))
        return Prompt(x.shape[0], x.shape[1], sizes, tokens, rest)


def by_sequence(ops: GraphOps, x: Value, *sizes: int) -> Value:
    """x (B·T, …) or (B, T, …) -> (B, T, *sizes)."""
    prompt = ops.prompt
    assert prompt is not None
    shape = (prompt.batch, prompt.length, *sizes)
    if x.shape == shape:
        return x
    if x.shape[:2] == shape[:2]:
        return ops.emit("Reshape", [x, ops.constant([0, 0, *sizes], "int64")], shape)
    return ops.emit("Reshape", [x, ops.concat([prompt.sizes, ops.constant(sizes, "int64")])], shape)


def row_numbers(ops: GraphOps, x: Value) -> int:
    """Numbers that x holds for each token."""
    prompt = ops.prompt
    assert prompt is not None
    return math.prod(x.shape[1 if x.shape[0] == prompt.rows else 2 :])  # type: ignore[arg-type]


def only_linear(log_gate: Value | None, beta: Value | None) -> None:
    """Refuse the update rules that the forms for many tokens do not know."""
    if log_gate is not None or beta is not None:
        raise NoParallelForm("the update rule of a layer has no form for many tokens in a graph")


def joined(ops: GraphOps, S: Value, z: Value | None) -> Value:
    """S (B, G, K, V) and z (B, G, K) as one: z is the state of a value that is always 1, (B, G, K, V+1)."""
    return S if z is None else ops.concat([S, ops.unsqueeze(z, -1)])


def parted(ops: GraphOps, both: Value, state: Value, with_z: bool) -> tuple[Value, Value | None, Value, Value | None]:
    """Results of `linear_attention` from (B·T, G, R, V+1), and from the joined state after."""
    *_, V = both.shape
    assert isinstance(V, int)
    if not with_z:
        return both, None, state, None
    numerator, denominator = ops.split(both, [V - 1, 1])
    S, z = ops.split(state, [V - 1, 1])
    return numerator, denominator, S, ops.squeeze(z, -1)


def with_ones(ops: GraphOps, v: Value, rest: Value | None = None) -> Value:
    """v (B, T, G, V) with a last column of ones; and longer by `rest` (1) tokens, whose keys must be zero."""
    B, T, G, V = v.shape
    assert isinstance(V, int)
    zero, one = ops.constant([0], "int64"), ops.constant([1], "int64")
    ends = ops.concat([zero, zero, zero if rest is None else rest, one])
    axes = ops.constant([1, 3], "int64")
    shape = (B, T if rest is None else f"{T}+rest", G, V + 1)
    return ops.emit("Pad", [v, ends, ops.constant(1.0, "float32"), axes], shape)


def chunked(
    ops: GraphOps, q: Value, k: Value, v: Value, S: Value, z: Value | None
) -> tuple[Value, Value | None, Value, Value | None]:
    """`linear_attention` over B·T rows, in operators of the default domain. X = (B, G, N): one product a chunk."""
    B, G, K, V = S.shape
    assert isinstance(G, int) and isinstance(K, int) and isinstance(V, int)
    assert ops.prompt is not None
    R, C, W = row_numbers(ops, q) // (G * K), CHUNK, V + (z is not None)
    rest = ops.prompt.rest
    q = _blocks(ops, _longer(ops, by_sequence(ops, q, G * R * K), rest), G, R * K)  # (X, C, R·K)
    q = ops.emit("Reshape", [q, ops.constant([0, 0, 0, C, R, K], "int64")], (B, G, "N", C, R, K))
    q = ops.emit("Transpose", [q], (B, G, "N", R, C, K), perm=[0, 1, 2, 4, 3, 5])
    q = ops.emit("Reshape", [q, ops.constant([0, 0, 0, R * C, K], "int64")], (B, G, "N", R * C, K))
    k = _blocks(ops, _longer(ops, by_sequence(ops, k, G * K), rest), G, K)  # (X, C, K)
    v = by_sequence(ops, v, G, V)
    v = _blocks(ops, _longer(ops, v, rest) if z is None else with_ones(ops, v, rest), G, W)  # (X, C, V+1)
    k_turned = ops.transpose(k, (0, 1, 2, 4, 3))
    causal = np.tile(np.tri(C), (R, 1))  # token i sees itself and those before it
    mask = ops.constant(causal, "float32", f"causal_{R}x{C}")
    inside = ops.matmul(ops.mul(ops.matmul(q, k_turned), mask), v)  # (X, R·C, V+1)
    added = ops.matmul(k_turned, v)  # (X, K, V+1)
    start = joined(ops, S, z)
    sums = ops.emit("CumSum", [added, ops.constant(2, "int64")], added.shape, exclusive=1)
    both = ops.add(inside, ops.matmul(q, ops.add(sums, ops.unsqueeze(start, 2))))
    total = ops.emit("ReduceSum", [added, ops.constant([2], "int64")], (B, G, K, W), keepdims=0)
    return parted(ops, _rows(ops, both, R), ops.add(start, total), z is not None)


def _longer(ops: GraphOps, x: Value, rest: Value) -> Value:
    """x (B, T, n), filled up with zeros."""
    ends = ops.concat([ops.constant([0], "int64"), rest])
    nothing, axes = ops.constant(0.0, "float32"), ops.constant([1], "int64")
    return ops.emit("Pad", [x, ends, nothing, axes], (x.shape[0], f"{x.shape[1]}+rest", *x.shape[2:]))


def _blocks(ops: GraphOps, x: Value, G: int, n: int) -> Value:
    """x (B, N·C, G·n or G, n) -> (B, G, N, C, n)."""
    sizes = ops.constant([0, -1, CHUNK, G, n], "int64")
    x = ops.emit("Reshape", [x, sizes], (x.shape[0], "N", CHUNK, G, n))
    return ops.transpose(x, (0, 3, 1, 2, 4))


def _rows(ops: GraphOps, x: Value, R: int) -> Value:
    """x (B, G, N, R·C, n) -> (B·T, G, R, n), without what filled up the last chunk."""
    prompt = ops.prompt
    assert prompt is not None
    B, G, _, _, n = x.shape
    x = ops.emit("Reshape", [x, ops.constant([0, 0, 0, R, CHUNK, n], "int64")], (B, G, "N", R, CHUNK, n))
    x = ops.transpose(x, (0, 2, 4, 1, 3, 5))  # (B, N, C, G, R, n)
    x = ops.emit("Reshape", [x, ops.constant([0, -1, G, R, n], "int64")], (B, "N*C", G, R, n))
    bounds = [ops.constant([0], "int64"), prompt.tokens, ops.constant([1], "int64")]
    x = ops.emit("Slice", [x, *bounds], (B, prompt.length, G, R, n))
    return ops.emit("Reshape", [x, ops.constant([-1, G, R, n], "int64")], (prompt.rows, G, R, n))
