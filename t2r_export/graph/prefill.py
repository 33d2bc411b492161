"""Linear attention over many tokens in a graph: the recurrence as matrix products over chunks, in ordinary operators.

The usual way is a loop in the graph. Here all chunks of 64 tokens are computed side by side, as in
`t2r_export.model.mixers.recurrences`, and a cumulative sum (or where the state decays, a Scan of two small operators)
carries the state from each to the next: the work is linear in T, and T may be any number. The last chunk is filled up
with zero keys, log gates and rates, which add nothing to the state and take nothing away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from t2r_export.model.ops import row_size

if TYPE_CHECKING:
    from t2r_export.graph.recorder import Dim, GraphOps, Value

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


def _joined(ops: GraphOps, S: Value, z: Value | None) -> Value:
    """S (B, G, K, V) and z (B, G, K) as one: z is the state of a value that is always 1, (B, G, K, V+1)."""
    return S if z is None else ops.concat([S, ops.unsqueeze(z, -1)])


def _parted(ops: GraphOps, both: Value, state: Value, with_z: bool) -> tuple[Value, Value | None, Value, Value | None]:
    """Results of `linear_attention` from (B·T, G, R, V+1), and from the joined state after."""
    *_, V = both.shape
    assert isinstance(V, int)
    if not with_z:
        return both, None, state, None
    numerator, denominator = ops.split(both, [V - 1, 1])
    S, z = ops.split(state, [V - 1, 1])
    return numerator, denominator, S, ops.squeeze(z, -1)


def _with_ones(ops: GraphOps, v: Value, rest: Value) -> Value:
    """v (B, T, G, V) with a last column of ones, and longer by `rest` (1) tokens, whose keys must be zero."""
    B, T, G, V = v.shape
    assert isinstance(V, int)
    zero, one = ops.constant([0], "int64"), ops.constant([1], "int64")
    ends = ops.concat([zero, zero, rest, one])
    axes = ops.constant([1, 3], "int64")
    shape = (B, f"{T}+rest", G, V + 1)
    return ops.emit("Pad", [v, ends, ops.constant(1.0, "float32"), axes], shape)


def chunked(
    ops: GraphOps, q: Value, k: Value, v: Value, S: Value, z: Value | None, log_gate: Value | None = None,
    beta: Value | None = None,
) -> tuple[Value, Value | None, Value, Value | None]:  # fmt: skip
    """`linear_attention` over B·T rows, in operators of the default domain. X = (B, G, N): one product a chunk.

    The formulas, and their letters, are those of `t2r_export.model.mixers.recurrences`.
    """
    B, G, K, V = S.shape
    assert isinstance(G, int) and isinstance(K, int) and isinstance(V, int)
    assert ops.prompt is not None
    R, C, W = row_numbers(ops, q) // (G * K), CHUNK, V + (z is not None)
    rest = ops.prompt.rest
    q = _blocks(ops, _longer(ops, by_sequence(ops, q, G * R * K), rest), G, R * K)  # (X, C, R·K)
    k = _blocks(ops, _longer(ops, by_sequence(ops, k, G * K), rest), G, K)  # (X, C, K)
    v = by_sequence(ops, v, G, V)
    v = _blocks(ops, _longer(ops, v, rest) if z is None else _with_ones(ops, v, rest), G, W)  # (X, C, V+1)
    k_turned = ops.transpose(k, (0, 1, 2, 4, 3))
    k_start, k_end, carry = k, k_turned, None
    rows = _of_heads(ops, q, R, K)  # (X, C·R, K)
    scores, q_start = ops.matmul(rows, k_turned), rows
    if log_gate is None:
        share = _causal(ops, 1)
        scores = ops.mul(scores, _causal(ops, R))
    else:
        start, share = _decays(ops, _blocks(ops, _longer(ops, _per_token(ops, log_gate), rest), G, 1))
        shape = (B, G, "N", C, R, C)
        scores = ops.emit("Reshape", [scores, ops.constant([0, 0, 0, C, R, C], "int64")], shape)
        scores = _of_heads(ops, ops.mul(scores, ops.unsqueeze(share, 4)), R, C)
        q_start, k_start = _of_heads(ops, ops.mul(q, start), R, K), ops.mul(k, start)
        k_end = ops.mul(k_turned, ops.split(share, [C - 1, 1], axis=-2)[1])
        carry = ops.split(start, [C - 1, 1], axis=-2)[1]  # (X, 1, 1)
    state = _joined(ops, S, z)
    if beta is None:
        before, after = _states(ops, state, ops.matmul(k_end, v), carry)
    else:
        beta = _blocks(ops, _longer(ops, _per_token(ops, beta), rest), G, 1)
        system = ops.mul(ops.mul(ops.matmul(k, k_turned), share), beta)
        solved = ops.matmul(_inverse(ops, system), ops.mul(ops.concat([v, k_start]), beta))
        v, read = ops.split(solved, [W, K])
        kept = ops.constant(np.eye(K), "float32", f"eye_{K}")
        carry = ops.sub(kept if carry is None else ops.mul(kept, carry), ops.matmul(k_end, read))  # (X, K, K)
        before, after = _states(ops, state, ops.matmul(k_end, v), carry)
        v = ops.sub(v, ops.matmul(read, before))
    both = ops.add(ops.matmul(scores, v), ops.matmul(q_start, before))  # (X, C·R, V+1)
    return _parted(ops, _rows(ops, both, R), after, z is not None)


def _of_heads(ops: GraphOps, x: Value, R: int, n: int) -> Value:
    """x (X, C, R·n or R, n) -> (X, C·R, n): the heads of a token below one another."""
    shape = (*x.shape[:3], CHUNK * R, n)
    return ops.emit("Reshape", [x, ops.constant([0, 0, 0, CHUNK * R, n], "int64")], shape)


def _causal(ops: GraphOps, heads: int) -> Value:
    """(C·heads, C): 1 where a token of the row's may see that of the column, itself and those before it."""
    return ops.constant(np.repeat(np.tri(CHUNK), heads, axis=0), "float32", f"causal_{CHUNK}x{heads}")


def _per_token(ops: GraphOps, x: Value) -> Value:
    """Gates or rates, (B·T, …) or the same for every token (1, …) -> (B, T, numbers)."""
    prompt, numbers = ops.prompt, row_size(x)
    assert prompt is not None
    if x.shape[0] == prompt.rows:
        return by_sequence(ops, x, numbers)
    sizes = ops.concat([prompt.sizes, ops.constant([numbers], "int64")])
    x = ops.emit("Reshape", [x, ops.constant([1, 1, numbers], "int64")], (1, 1, numbers))
    return ops.emit("Expand", [x, sizes], (prompt.batch, prompt.length, numbers))


def _decays(ops: GraphOps, log_gate: Value) -> tuple[Value, Value]:
    """log g (X, C, 1) -> Γ_i0 (X, C, 1) and Γ_ij (X, C, C), 0 for j > i: exponentials of sums that are at most 0."""
    sums = np.tri(CHUNK)  # each over its own gates: a product with ones adds up those from j + 1 to i
    taken = np.concatenate([np.ones((CHUNK, 1)), np.tri(CHUNK, k=-1)], axis=1)
    seen = np.concatenate([np.ones((CHUNK, 1)), sums], axis=1)
    spread = ops.mul(log_gate, ops.constant(taken, "float32", f"later_{CHUNK}"))
    left = ops.exp(ops.matmul(ops.constant(sums, "float32", f"causal_{CHUNK}x1"), spread))
    start, share = ops.split(ops.mul(left, ops.constant(seen, "float32", f"causal_from_start_{CHUNK}")), [1, CHUNK])
    return start, share


def _inverse(ops: GraphOps, system: Value) -> Value:
    """Of (X, C, C) lower triangular with a diagonal of ones; what stands on the diagonal and above is not read.

    From blocks of one number to the whole: [[A, 0], [B, D]] has the inverse [[A⁻¹, 0], [-D⁻¹ B A⁻¹, D⁻¹]]. So it takes
    2 log₂ C products for all blocks, and no power of the system, which would be large where keys are alike.
    """
    row, column = np.indices((CHUNK, CHUNK))
    inverse, size = ops.constant(np.eye(CHUNK), "float32", f"eye_{CHUNK}"), 1
    while size < CHUNK:
        lower = (row // size == column // size + 1) & (row // size % 2 == 1)
        below = ops.mul(system, ops.constant(lower, "float32", f"lower_{size}x{CHUNK}"))
        if size > 1:
            below = ops.matmul(ops.matmul(inverse, below), inverse)
        inverse = ops.sub(inverse, below)
        size *= 2
    return inverse


def _states(ops: GraphOps, start: Value, added: Value, carry: Value | None) -> tuple[Value, Value]:
    """The states before each of N chunks (B, G, N, K, W), and after the last.

    Args:
        start: (B, G, K, W). added: (X, K, W), what each chunk adds.
        carry: what each chunk leaves of the state before it: all (None), a share (X, 1, 1), or a linear function
            (X, K, K).
    """
    if carry is None:
        sums = ops.emit("CumSum", [added, ops.constant(2, "int64")], added.shape, exclusive=1)
        total = ops.emit("ReduceSum", [added, ops.constant([2], "int64")], start.shape, keepdims=0)
        return ops.add(sums, ops.unsqueeze(start, 2)), ops.add(start, total)
    past, kept, more, left, before, after = (
        f"{added.name}.{name}" for name in ("past", "kept", "more", "left", "before", "after")
    )
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in ((past, kept, more), (after, before))
    )
    nodes = [
        helper.make_node("Identity", [past], [before]),
        helper.make_node("Mul" if carry.shape[-2:] == (1, 1) else "MatMul", [kept, past], [left]),
        helper.make_node("Add", [left, more], [after]),
    ]
    body = helper.make_graph(nodes, f"{added.name}.chunk", inputs, outputs)
    last, states = ops.emit_many(
        "Scan",
        [start, carry, added],
        [start.shape, added.shape],
        body=body,
        num_scan_inputs=2,
        scan_input_axes=[2, 2],
        scan_output_axes=[2],
    )
    return states, last


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
    """x (B, G, N, C·R, n) -> (B·T, G, R, n), without what filled up the last chunk."""
    prompt = ops.prompt
    assert prompt is not None
    B, G, _, _, n = x.shape
    x = ops.emit("Reshape", [x, ops.constant([0, 0, 0, CHUNK, R * n], "int64")], (B, G, "N", CHUNK, R * n))
    x = ops.transpose(x, (0, 2, 3, 1, 4))  # (B, N, C, G, R·n)
    x = ops.emit("Reshape", [x, ops.constant([0, -1, G, R * n], "int64")], (B, "N*C", G, R * n))
    bounds = [ops.constant([0], "int64"), prompt.tokens, ops.constant([1], "int64")]
    x = ops.emit("Slice", [x, *bounds], (B, prompt.length, G, R * n))
    return ops.emit("Reshape", [x, ops.constant([-1, G, R, n], "int64")], (prompt.rows, G, R, n))
