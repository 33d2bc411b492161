"""Chunks of a prompt's tokens as graph nodes, and scans over tokens.

The usual way to read many tokens is a loop in the graph. Here all chunks are computed in parallel, as in
`t2r_export.model.recurrences`, and the work is linear in T.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from t2r_export.graph.operators import Operators
from t2r_export.graph.prompt import Prompt
from t2r_export.graph.recorder import Value
from t2r_export.model.ops import Erase
from t2r_export.model.pieces import Pieces

CHUNK = 64  # tokens; 64 and 128 took the same time within noise, 512 a quarter longer
CHUNK_ERASING = 32  # for erase vectors, with four times as many scores
CHUNK_CHANNELS = 16  # for per-channel decays, with log₂ of it times as many scores


def chunk_size(log_gate: Value | None, beta: Value | None, erase: Erase[Value] | None) -> int:
    """Tokens per chunk. Delta rules carry a matrix from chunk to chunk, so small chunks are expensive."""
    if erase is not None:
        return CHUNK_ERASING
    return CHUNK_CHANNELS if beta is None and log_gate is not None and log_gate.shape[-1] != 1 else CHUNK


class GraphPieces(Pieces[Value]):
    """Pieces of a prompt; X is the axes (B, G, N)."""

    ops: Operators

    def __init__(self, prompt: Prompt, capacity: int) -> None:
        super().__init__(prompt.ops, capacity)
        self.prompt = prompt

    def per_token(self, x: Value) -> Value:
        return self.cut(self.prompt.of_each(x))

    def transposed(self, x: Value) -> Value:
        return self.ops.transpose(x, (0, 1, 2, 4, 3))

    def total(self, x: Value) -> Value:
        ops, (*X, _, n) = self.ops, x.shape
        return ops.unsqueeze(ops.emit("ReduceSum", [x, ops.constant([-2], "int64")], (*X, n), keepdims=0), -1)

    def solve(self, system: Value, right: Value) -> Value:
        """`right` times the inverse of `system`, whose blocks are doubled from size 1.

        [[A, 0], [B, D]] has the inverse [[A⁻¹, 0], [-D⁻¹ B A⁻¹, D⁻¹]]. This takes 2 log₂ C batched products and avoids
        powers of the matrix, which would be large for similar keys.
        """
        ops, size = self.ops, self.capacity
        row, column = np.indices((size, size))
        inverse, block = ops.constant(np.eye(size), "float32", f"eye_{size}"), 1
        while block < size:
            lower = (row // block == column // block + 1) & (row // block % 2 == 1)
            below = ops.mul(system, ops.constant(lower, "float32", f"lower_{block}x{size}"))
            if block > 1:
                below = ops.matmul(ops.matmul(inverse, below), inverse)
            inverse = ops.sub(inverse, below)
            block *= 2
        return ops.matmul(inverse, right)


class Chunks(GraphPieces):
    """Chunks of `capacity` tokens, computed in parallel; the last one is padded with zeros.

    The state is carried between chunks by a cumulative sum or, if it decays, by a Scan of two small operators.
    """

    def cut(self, x: Value) -> Value:
        return self.prompt.blocks(x, self.capacity)

    def with_ones(self, v: Value) -> Value:
        ops, C = self.ops, self.capacity
        B, G, _, V = v.shape
        assert isinstance(V, int)
        v = self.prompt.filled(v, self.prompt.rest(C), 1, 1.0, (B, G, f"N{C}*{C}", V + 1))
        return ops.reshape(v, (0, 0, -1, C, V + 1))

    def rows(self, q: Value, kv_heads: int) -> Value:
        q = self.cut(q)
        _, H, _, C, n = q.shape
        R = _share(H, kv_heads)
        if R == 1:
            return q
        q = self.ops.transpose(self.ops.reshape(q, (0, kv_heads, R, -1, self.capacity, n)), (0, 1, 3, 2, 4, 5))  # type: ignore[arg-type]
        return self.ops.reshape(q, (0, kv_heads, -1, R * self.capacity, n))  # type: ignore[arg-type]

    def heads(self, rows: Value, heads: int) -> Value:
        ops, C = self.ops, self.capacity
        _, G, _, _, n = rows.shape
        assert isinstance(G, int) and isinstance(n, int)
        if (R := heads // G) > 1:
            rows = ops.transpose(ops.reshape(rows, (0, G, -1, R, C, n)), (0, 1, 3, 2, 4, 5))
            rows = ops.reshape(rows, (0, heads, -1, C, n))
        return self.prompt.unblock(rows)

    def by_head(self, rows: Value, factor: Value) -> Value:
        ops, C = self.ops, self.capacity
        B, G, N, together, n = rows.shape
        if together == C:
            return ops.mul(rows, factor)
        assert isinstance(together, int)
        split = ops.reshape(rows, (0, 0, 0, together // C, C, n))  # type: ignore[arg-type]
        return ops.mul(split, ops.unsqueeze(factor, 3)).viewed((B, G, N, together, n))

    def square(self, name: str, array: np.ndarray[Any, Any]) -> Value:
        return self.ops.constant(array, "float32", name)

    def masked(self, scores: Value, name: str, array: np.ndarray[Any, Any]) -> Value:
        R = _share(scores.shape[3], self.capacity)
        return self.ops.mul(scores, self.square(f"{name}_{R}x{self.capacity}", np.tile(array, (R, 1))))

    def states(self, start: Value, added: Value, carry: Value | None) -> tuple[Value, Value]:
        ops = self.ops
        if carry is None:
            sums = ops.emit("CumSum", [added, ops.constant(2, "int64")], added.shape, exclusive=1)
            total = ops.emit("ReduceSum", [added, ops.constant([2], "int64")], start.shape, keepdims=0)
            return ops.add(sums, ops.unsqueeze(start, 2)), ops.add(start, total)
        square = carry.shape[-1] != 1
        return scan(ops, start, carry, added, axis=2, square=square, before=True)


def scan(
    ops: Operators, start: Value, carry: Value, added: Value, axis: int, square: bool = False, before: bool = False
) -> tuple[Value, Value]:
    """Scan state = carry · state + added along an axis of carry and added; returns all states and the last.

    Args:
        square: carry is a matrix, not a factor per element.
        before: return the states before each piece, not after it.
    """
    last, states = ops.emit_many(
        "Scan",
        [start, carry, added],
        [start.shape, added.shape],
        body=_body(added.name, "MatMul" if square else "Mul", before),
        num_scan_inputs=2,
        scan_input_axes=[axis, axis],
        scan_output_axes=[axis],
    )
    return states, last


def _body(prefix: str, carries: str, gives_before: bool) -> Any:
    """The body of a Scan: state before, carry and added -> state after, and the Scan's output."""
    past, kept, more, left, before, after = (
        f"{prefix}.{name}" for name in ("past", "kept", "more", "left", "before", "after")
    )
    given = before if gives_before else f"{prefix}.each"
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in ((past, kept, more), (after, given))
    )
    update = [
        helper.make_node(carries, [kept, past], [left]),
        helper.make_node("Add", [left, more], [after]),
    ]
    copy = helper.make_node("Identity", [past if gives_before else after], [given])
    return helper.make_graph([copy, *update] if gives_before else [*update, copy], f"{prefix}.chunk", inputs, outputs)


def complex_scan(ops: Operators, start: Value, factor: Value, added: Value) -> tuple[Value, Value]:
    """Complex scan state = factor · state + added, real parts before imaginary parts; returns all states and the last.

    Args:
        start: (B, 2·D). factor: (2·D,). added: (B, T, 2·D).
    """
    half = factor.shape[0] // 2  # type: ignore[operator]
    real, imaginary = ops.split(factor, [half, half])
    own, swapped = ops.concat([real, real]), ops.concat([ops.mul(imaginary, -1.0), imaginary])
    last, _, _, states = ops.emit_many(
        "Scan",
        [start, own, swapped, added],
        [start.shape, own.shape, swapped.shape, added.shape],
        body=_complex_body(added.name),
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
    )
    return states, last


def _complex_body(prefix: str) -> Any:
    """The body of a Scan: state, its two constant factors and added -> new state, factors, and the Scan's output."""
    names = ("past", "own", "swapped", "more", "after", "own_after", "swapped_after", "each", "real", "imaginary")
    past, own, swapped, more, after, own_after, swapped_after, each, real, imaginary = (
        f"{prefix}.{name}" for name in names
    )
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in group]
        for group in ((past, own, swapped, more), (after, own_after, swapped_after, each))
    )
    nodes = [
        helper.make_node("Split", [past], [real, imaginary], axis=-1, num_outputs=2),
        helper.make_node("Concat", [imaginary, real], [f"{prefix}.turned"], axis=-1),
        helper.make_node("Mul", [past, own], [f"{prefix}.kept"]),
        helper.make_node("Mul", [f"{prefix}.turned", swapped], [f"{prefix}.crossed"]),
        helper.make_node("Add", [f"{prefix}.kept", f"{prefix}.crossed"], [f"{prefix}.left"]),
        helper.make_node("Add", [f"{prefix}.left", more], [after]),
        *(
            helper.make_node("Identity", [a], [b])
            for a, b in ((after, each), (own, own_after), (swapped, swapped_after))
        ),
    ]
    return helper.make_graph(nodes, f"{prefix}.complex", inputs, outputs)


def _share(heads: Any, kv_heads: int) -> int:
    assert isinstance(heads, int)
    return heads // kv_heads
