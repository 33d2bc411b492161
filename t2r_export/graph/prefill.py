"""A graph that reads many tokens at once: what of it depends on their number, in ordinary operators.

The usual way is a loop in the graph. Here all chunks of tokens are computed side by side, and for linear attention, as
in `t2r_export.model.recurrences`, a cumulative sum (or where the state decays, a Scan of two small operators) carries
the state from each chunk of 64 to the next: the work is linear in T, and T may be any number. The last chunk is filled
up with zero keys, log gates and rates, which add nothing to the state and take nothing away.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from t2r_export.graph.operators import Operators
from t2r_export.graph.recorder import Dim, Value

CHUNK = 64  # tokens; from 64 to 128 the time was the same within the noise, and 512 took a quarter longer


class Prompt:
    """The tokens that are read: T of each of B sequences, known to the graph alone unless they are numbers.

    Args:
        x: (B, T, D).
    """

    def __init__(self, ops: Operators, x: Value) -> None:
        self.ops = ops
        self.batch, self.length = x.shape[:2]
        self._batch = ops.emit("Shape", [x], (1,), "int64", end=1)
        known = isinstance(self.length, int)
        self.tokens = (
            ops.constant([self.length], "int64") if known else ops.emit("Shape", [x], (1,), "int64", start=1, end=2)
        )
        self._rest: dict[int, Value] = {}
        self._sizes: dict[tuple[int, ...], Value] = {}

    def by_sequence(self, x: Value, *sizes: int) -> Value:
        """Rows (N, …) -> (B, T, *sizes)."""
        known = [d if isinstance(d, int) else -1 for d in (self.batch, self.length)]
        if known != [-1, -1]:
            whole = self.ops.constant([*known, *sizes], "int64")
            return self.ops.emit("Reshape", [x, whole], (self.batch, self.length, *sizes))
        if sizes not in self._sizes:
            rest = self.ops.constant(sizes, "int64")
            self._sizes[sizes] = self.ops.concat([self._batch, self.tokens, rest])
        return self.ops.emit("Reshape", [x, self._sizes[sizes]], (self.batch, self.length, *sizes))

    def rest(self, size: int) -> Value:
        """(1,): how many tokens the last of the chunks of `size` lacks."""
        if size not in self._rest:
            negative = self.ops.emit("Neg", [self.tokens], (1,))
            self._rest[size] = self.ops.emit("Mod", [negative, self.ops.constant([size], "int64")], (1,))
        return self._rest[size]

    def blocks(self, x: Value, size: int) -> Value:
        """x (B, heads, T, d) -> (B, heads, N, size, d), filled up with zeros."""
        ops = self.ops
        ends = ops.concat([ops.constant([0], "int64"), self.rest(size)])
        shape = (*x.shape[:2], f"N{size}*{size}", x.shape[3])
        x = ops.emit("Pad", [x, ends, ops.constant(0.0, "float32"), ops.constant([2], "int64")], shape)
        return self._cut(x, size)

    def _cut(self, x: Value, size: int) -> Value:
        return self.ops.reshape(x, (0, 0, -1, size, *x.shape[3:]))  # type: ignore[arg-type]

    def unblock(self, x: Value) -> Value:
        """(B, heads, N, size, d) -> (B, heads, T, d)."""
        ops, shape = self.ops, x.shape
        x = ops.reshape(x, (0, 0, -1, shape[4]))  # type: ignore[arg-type]
        bounds = [ops.constant([0], "int64"), self.tokens, ops.constant([2], "int64")]
        return ops.emit("Slice", [x, *bounds], (*shape[:2], self.length, shape[4]))

    def values(self, v: Value, with_ones: bool) -> Value:
        """v (B, G, T, V) in chunks (B, G, N, C, V), with a last column of ones (…, V + 1)."""
        if not with_ones:
            return self.blocks(v, CHUNK)
        ops = self.ops
        B, G, _, V = v.shape
        assert isinstance(V, int)
        zero, one = ops.constant([0], "int64"), ops.constant([1], "int64")
        ends, axes = ops.concat([zero, zero, self.rest(CHUNK), one]), ops.constant([2, 3], "int64")
        v = ops.emit("Pad", [v, ends, ops.constant(1.0, "float32"), axes], (B, G, f"N{CHUNK}*{CHUNK}", V + 1))
        return self._cut(v, CHUNK)

    def per_token(self, x: Value) -> Value:
        """Gates (B, G, T, 1), or the same for every token (1, G, 1, 1), in chunks (B, G, N, C, 1)."""
        ops, (_, G, length, _) = self.ops, x.shape
        if length != self.length:
            sizes = ops.concat([self._batch, ops.constant([G], "int64"), self.tokens, ops.constant([1], "int64")])
            x = ops.emit("Expand", [x, sizes], (self.batch, G, self.length, 1))
        return self.blocks(x, CHUNK)

    def range(self, start: Value, end: Value, length: Dim) -> Value:
        """start … end - 1, both (1,)."""
        ops = self.ops
        bounds = [ops.scalar(start), ops.scalar(end), ops.constant(1, end.dtype)]
        return ops.emit("Range", bounds, (length,), end.dtype)


def linear_attention(
    prompt: Prompt, q: Value, k: Value, v: Value, S: Value, z: Value | None, log_gate: Value | None, beta: Value | None
) -> tuple[Value, Value | None, Value, Value | None]:
    """`Ops.linear_attention` over T tokens. X = (B, G, N): one product per chunk.

    The formulas, and their letters, are those of `t2r_export.model.recurrences`.
    """
    ops, H = prompt.ops, q.shape[1]
    _, G, K, V = S.shape
    assert isinstance(G, int) and isinstance(H, int) and isinstance(K, int) and isinstance(V, int)
    R, C, W = H // G, CHUNK, V + (z is not None)
    rows = _rows(ops, prompt.blocks(q, C), G, R, K)  # (X, R·C, K)
    k, v = prompt.blocks(k, C), prompt.values(v, z is not None)  # (X, C, K), (X, C, V+1)
    k_transposed = ops.transpose(k, (0, 1, 2, 4, 3))
    k_start, k_end, carry, q_start = k, k_transposed, None, rows
    scores = ops.matmul(rows, k_transposed)
    if log_gate is None:
        share = _causal(ops, 1)
        scores = ops.mul(scores, _causal(ops, R))
    else:
        start, share = _decays(ops, prompt.per_token(log_gate))  # (X, C, 1), (X, C, C)
        scores = _by_head(ops, R, scores, share)
        q_start, k_start = _by_head(ops, R, rows, start), ops.mul(k, start)
        k_end = ops.mul(k_transposed, ops.split(share, [C - 1, 1], axis=-2)[1])
        carry = ops.split(start, [C - 1, 1], axis=-2)[1]  # (X, 1, 1)
    # z is the state of a value that is always 1
    state = S if z is None else ops.concat([S, ops.unsqueeze(z, -1)])
    if beta is None:
        before, after = _states(ops, state, ops.matmul(k_end, v), carry)
    else:
        rate = prompt.per_token(beta)
        system = ops.mul(ops.mul(ops.matmul(k, k_transposed), share), rate)
        solved = ops.matmul(_inverse(ops, system), ops.mul(ops.concat([v, k_start]), rate))
        v, read = ops.split(solved, [W, K])
        kept = ops.constant(np.eye(K), "float32", f"eye_{K}")
        carry = ops.sub(kept if carry is None else ops.mul(kept, carry), ops.matmul(k_end, read))  # (X, K, K)
        before, after = _states(ops, state, ops.matmul(k_end, v), carry)
        v = ops.sub(v, ops.matmul(read, before))
    both = ops.add(ops.matmul(scores, v), ops.matmul(q_start, before))  # (X, R·C, V+1)
    both = prompt.unblock(_heads(ops, both, H, R, W))  # (B, H, T, V+1)
    if z is None:
        return both, None, after, None
    numerator, denominator = ops.split(both, [V, 1])
    S, z = ops.split(after, [V, 1])
    return numerator, denominator, S, ops.squeeze(z, -1)


def _rows(ops: Operators, x: Value, G: int, R: int, n: int) -> Value:
    """x (B, H, N, C, n) -> (X, R·C, n): the heads of a group below one another."""
    if R == 1:
        return x
    x = ops.transpose(ops.reshape(x, (0, G, R, -1, CHUNK, n)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (0, G, -1, R * CHUNK, n))


def _heads(ops: Operators, x: Value, H: int, R: int, n: int) -> Value:
    """Inverse of `_rows`."""
    if R == 1:
        return x
    x = ops.transpose(ops.reshape(x, (0, H // R, -1, R, CHUNK, n)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (0, H, -1, CHUNK, n))


def _by_head(ops: Operators, R: int, rows: Value, factor: Value) -> Value:
    """rows (X, R·C, n) · factor (X, C, m), the same for each of the R heads."""
    if R == 1:
        return ops.mul(rows, factor)
    B, G, N, _, n = rows.shape
    split = ops.reshape(rows, (0, 0, 0, R, CHUNK, n))  # type: ignore[arg-type]
    return ops.mul(split, ops.unsqueeze(factor, 3)).viewed((B, G, N, R * CHUNK, n))


def _causal(ops: Operators, heads: int) -> Value:
    """(heads·C, C): 1 where a token of the row's may see that of the column, itself and those before it."""
    return ops.constant(np.tile(np.tri(CHUNK), (heads, 1)), "float32", f"causal_{heads}x{CHUNK}")


def _decays(ops: Operators, log_gate: Value) -> tuple[Value, Value]:
    """log g (X, C, 1) -> Γ_i0 (X, C, 1) and Γ_ij (X, C, C), 0 for j > i: exponentials of sums that are at most 0."""
    sums = np.tri(CHUNK)  # each over its own gates: a product with ones adds up those from j + 1 to i
    taken = np.concatenate([np.ones((CHUNK, 1)), np.tri(CHUNK, k=-1)], axis=1)
    seen = np.concatenate([np.ones((CHUNK, 1)), sums], axis=1)
    spread = ops.mul(log_gate, ops.constant(taken, "float32", f"later_{CHUNK}"))
    left = ops.exp(ops.matmul(ops.constant(sums, "float32", f"causal_1x{CHUNK}"), spread))
    start, share = ops.split(ops.mul(left, ops.constant(seen, "float32", f"causal_from_start_{CHUNK}")), [1, CHUNK])
    return start, share


def _inverse(ops: Operators, system: Value) -> Value:
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


def _states(ops: Operators, start: Value, added: Value, carry: Value | None) -> tuple[Value, Value]:
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
