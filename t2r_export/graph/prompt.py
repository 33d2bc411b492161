"""The tokens of a prompt graph: their number, and reshaping by sequence and by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from t2r_export.graph.operators import Operators
from t2r_export.graph.recorder import Dim, Value


class Prompt:
    """T tokens of each of B sequences; both may be known only at run time.

    Args:
        x: (B, T, D).
    """

    def __init__(self, ops: Operators, x: Value) -> None:
        self.ops = ops
        self.batch, self.length = x.shape[:2]
        self.batch_size = ops.emit("Shape", [x], (1,), "int64", end=1)
        known = isinstance(self.length, int)
        self.tokens = (
            ops.constant([self.length], "int64") if known else ops.emit("Shape", [x], (1,), "int64", start=1, end=2)
        )

    def by_sequence(self, x: Value, *sizes: int) -> Value:
        """Rows (N, …) -> (B, T, *sizes)."""
        known = [d if isinstance(d, int) else -1 for d in (self.batch, self.length)]
        if known != [-1, -1]:
            whole = self.ops.constant([*known, *sizes], "int64")
            return self.ops.emit("Reshape", [x, whole], (self.batch, self.length, *sizes))
        whole = self.ops.concat([self.batch_size, self.tokens, self.ops.constant(sizes, "int64")])
        return self.ops.emit("Reshape", [x, whole], (self.batch, self.length, *sizes))

    def of_each(self, x: Value) -> Value:
        """Values of each token, expanded to (B, G, T, n) from (1, G, 1, n) if they are shared."""
        ops, (_, G, length, n) = self.ops, x.shape
        if length == self.length:
            return x
        sizes = [self.batch_size, ops.constant([G], "int64"), self.tokens, ops.constant([n], "int64")]
        return ops.emit("Expand", [x, ops.concat(sizes)], (self.batch, G, self.length, n))

    def rest(self, size: int) -> Value:
        """(1,): the number of padding tokens in the last chunk of `size`."""
        negative = self.ops.emit("Neg", [self.tokens], (1,))
        return self.ops.emit("Mod", [negative, self.ops.constant([size], "int64")], (1,))

    def blocks(self, x: Value, size: int) -> Value:
        """x (B, heads, T, d) -> (B, heads, N, size, d), padded with zeros."""
        ops = self.ops
        x = self.filled(x, self.rest(size), 0, 0.0, (*x.shape[:2], f"N{size}*{size}", x.shape[3]))
        return ops.reshape(x, (0, 0, -1, size, *x.shape[3:]))  # type: ignore[arg-type]

    def filled(self, x: Value, rows: Value | None, columns: int, value: float, shape: Sequence[Dim]) -> Value:
        """Pad x (B, heads, T, d) with `value`: `rows` (1,) at the end of T and `columns` at the end of d.

        The pads cover all axes: ONNX Runtime 1.31 moves a Transpose past a Pad with an axes input incorrectly, and
        OpenVINO's provider 1.24 refuses computed pads with one.
        """
        ops = self.ops
        if rows is None:
            ends = ops.constant([0] * 7 + [columns], "int64")
        else:
            ends = ops.concat([ops.constant([0] * 6, "int64"), rows, ops.constant([columns], "int64")])
        return ops.emit("Pad", [x, ends, ops.constant(value, "float32")], shape)

    def unblock(self, x: Value) -> Value:
        """(B, heads, N, size, d) -> (B, heads, T, d)."""
        ops, shape = self.ops, x.shape
        return self.trimmed(ops.reshape(x, (0, 0, -1, shape[4])))  # type: ignore[arg-type]

    def trimmed(self, x: Value) -> Value:
        """The first T tokens of x (B, heads, ·, d)."""
        bounds = [self.ops.constant([0], "int64"), self.tokens, self.ops.constant([2], "int64")]
        return self.ops.emit("Slice", [x, *bounds], (*x.shape[:2], self.length, x.shape[3]))

    def range(self, start: Value, end: Value, length: Dim) -> Value:
        """start … end - 1, both (1,)."""
        ops = self.ops
        bounds = [ops.scalar(start), ops.scalar(end), ops.constant(1, end.dtype)]
        return ops.emit("Range", bounds, (length,), end.dtype)
