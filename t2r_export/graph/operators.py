"""The operators of `t2r_export.model.ops` that do not depend on the number of tokens, as graph nodes.

All operators are in the default domain at opset 21, so that any provider may support them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from t2r_export.graph.recorder import (
    ONNX_TYPES,
    Dim,
    Recorder,
    Value,
    broadcast,
    plus,
    product,
    resolved,
)
from t2r_export.graph.weights import OF_ADAPTERS
from t2r_export.model.ops import Ops

END = np.iinfo(np.int64).max  # slice bound: the end of the axis


class Operators(Recorder, Ops[Value]):
    """Each method adds nodes and returns their result as a `Value`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.sums: dict[str, tuple[Value, Value]] = {}  # operands of equal shape, keyed by result name
        self.adapters: Mapping[str, tuple[np.ndarray, np.ndarray]] = {}  # A and B of all adapters, by weight
        self.chosen: Value | None = None  # the number of each sequence's adapter (B,), int32
        self.adapted: set[str] = set()  # weights whose products have adapters
        self._wholes: dict[tuple[Value, ...], tuple[Value, Sequence[int]]] = {}  # split heads: (x, sizes) by parts

    def _operand(self, x: Value | float, like: Value) -> Value:
        return x if isinstance(x, Value) else self.constant(x, like.dtype)

    def _binary(self, op: str, a: Value | float, b: Value | float) -> Value:
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value)
        a, b = self._operand(a, like), self._operand(b, like)
        shape = broadcast(a.shape, b.shape)
        a, b = self._together(a, b)
        large = max(a, b, key=lambda v: len(v.shape))
        if all(_alike(v, large) for v in (a, b)):
            last = shape[-1:] if all(map(_last_kept, (a, b))) else large.stored[-1:]
            (y,) = self._node(op, [a.name, b.name], a.dtype, [(*large.stored[:-1], *last)])
            return y.viewed(shape)
        return self.emit(op, [a, b], shape)

    def _together(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Give two values that differ only in the last axis the same stored shape, if one of them stores that axis
        last."""
        settled = any(v.stored == v.shape for v in (a, b))
        if settled or _alike(a, b) or a.shape[:-1] != b.shape[:-1]:
            return a, b
        for kept, other in ((a, b), (b, a)):
            if _last_kept(kept):
                moved = self.settled(other.viewed((*kept.stored[:-1], *other.shape[-1:]))).viewed(other.shape)
                return (kept, moved) if kept is a else (moved, kept)
        return a, b

    def _unary(self, op: str, x: Value, **attributes: Any) -> Value:
        return self.emit_elementwise(op, [x], **attributes)

    # -- weights and constants

    def embedding(self, ids: Value, table: Value | Tensor) -> Value:
        named = not isinstance(table, Value)
        weight = self.parameter(table)
        name = self.unique_name(weight, "gather") if named else ""
        ids = self.settled(ids)
        return self.emit("Gather", [weight, ids], (*ids.shape, *weight.shape[1:]), name=name)

    def linear(self, x: Value, weight: Tensor, bias: Tensor | None) -> Value:
        value = self.parameter(weight)
        y = self._gemm(x, value, None if bias is None else self.parameter(bias))
        return self._plus_adapters(x, y, [(value.name, value.shape[0])])

    def linears(self, x: Value, groups: Sequence[Sequence[nn.Linear]]) -> list[Value]:
        layers = [layer for group in groups for layer in group]
        biases = [layer.bias for layer in layers if layer.bias is not None]
        assert len(biases) in (0, len(layers)), "a bias for all, or for none"
        y = self._gemm(x, self.stacked([layer.weight for layer in layers]), self.stacked(biases) if biases else None)
        if self.adapters:
            pieces = [(self.parameter(layer.weight).name, layer.out_features) for layer in layers]
            y = self._plus_adapters(x, y, pieces)
        return self.split(y, [sum(layer.out_features for layer in group) for group in groups])

    def _gemm(self, x: Value, weight: Value, bias: Value | None) -> Value:
        assert len(x.shape) == 2, "Gemm takes matrices, and a [1, 1, D] input costs two reshapes on the CPU provider"
        inputs = [x, weight, *self._bias(weight, bias)]
        shape = (x.shape[0], weight.shape[0])
        return self.emit("Gemm", inputs, shape, name=self.unique_name(weight, "gemm"), transB=1)

    def _plus_adapters(self, x: Value, y: Value, pieces: Sequence[tuple[str, Any]]) -> Value:
        """y = W x, plus B A x of each row's adapter. Args: pieces: the weights that W consists of, and their rows."""
        known = [name for name, _ in pieces if name in self.adapters]
        z = x if self.chosen is None else self._by_sequence(x)
        if z is None or not known:
            return y
        self.adapted |= {*known}
        inner = np.concatenate([self.adapters[name][0] for name in known], axis=2)
        outer, rank, column = np.zeros((*inner.shape[::2], sum(rows for _, rows in pieces)), np.float32), 0, 0
        for name, rows in pieces:
            if name in known:
                part = self.adapters[name][1]
                outer[:, rank : rank + part.shape[1], column : column + rows] = part
                rank += part.shape[1]
            column += rows
        for kind, table in (("A", inner), ("B", outer)):
            name = f"{known[0].removesuffix('.weight')}.{kind}"
            if self.chosen is None:
                self.weights[name] = matrix = table[0].T.copy()
                z = self._gemm(z, Value(name, "float32", matrix.shape), None)
            else:
                name = OF_ADAPTERS + name
                self.weights[name] = table
                z = self.matmul(z, self.embedding(self.chosen, Value(name, "float32", table.shape)))
        return self.add(y, z.viewed(y.shape))

    def _by_sequence(self, x: Value) -> Value | None:
        """Rows (N, D) as (B, tokens, D); None if they are not those of tokens."""
        raise NotImplementedError

    def _bias(self, weight: Value, bias: Value | None) -> list[Value]:
        """The bias inputs of a Gemm: one or none."""
        return [] if bias is None else [bias]

    # -- arithmetic

    def layer_norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value:
        inputs = [x, self.parameter(weight), self.parameter(bias)]
        return self.emit("LayerNormalization", inputs, x.shape, axis=-1, epsilon=eps)

    def rms_norm(self, x: Value, weight: Tensor | None, eps: float) -> Value:
        # RMSNormalization needs opset 23; ONNX Runtime fuses this pattern into one kernel
        square = self._binary("Pow", x, 2.0)
        root = self._unary("Sqrt", self._binary("Add", self.mean(square), eps))
        normed = self._binary("Div", x, root)
        return normed if weight is None else self._binary("Mul", normed, self.parameter(weight))

    def add(self, a: Value | float, b: Value | float) -> Value:
        total = self._binary("Add", a, b)
        if isinstance(a, Value) and isinstance(b, Value) and a.shape == b.shape:
            self.sums[total.name] = (a, b)
        return total

    def sub(self, a: Value | float, b: Value | float) -> Value:
        return self._binary("Sub", a, b)

    def mul(self, a: Value | float, b: Value | float) -> Value:
        return self._binary("Mul", a, b)

    def div(self, a: Value | float, b: Value | float) -> Value:
        return self._binary("Div", a, b)

    def maximum(self, x: Value, low: float) -> Value:
        return self._binary("Max", x, low)

    def minimum(self, x: Value, high: float) -> Value:
        return self._binary("Min", x, high)

    def remainder(self, x: Value, divisor: int) -> Value:
        return self.sub(x, self.mul(self.div(x, divisor), divisor))  # no Mod, which WebGPU lacks

    def matmul(self, a: Value, b: Value) -> Value:
        assert a.shape[-1] == b.shape[-2], (a, b)
        return self.emit("MatMul", [a, b], (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))

    def relu(self, x: Value) -> Value:
        return self._unary("Relu", x)

    def exp(self, x: Value) -> Value:
        return self._unary("Exp", x)

    def log(self, x: Value) -> Value:
        return self._unary("Log", x)

    def sigmoid(self, x: Value) -> Value:
        return self._unary("Sigmoid", x)

    def log_sigmoid(self, x: Value) -> Value:
        # not Log(Sigmoid(x)): ONNX Runtime's Sigmoid on the CPU is up to 1.4e-7 off where it is nearly 1
        return self._unary("Neg", self._unary("Softplus", self._unary("Neg", x)))

    def elu(self, x: Value) -> Value:
        return self._unary("Elu", x)

    def silu(self, x: Value) -> Value:
        return self._binary("Mul", x, self.sigmoid(x))

    def tanh(self, x: Value) -> Value:
        return self._unary("Tanh", x)

    def gelu(self, x: Value, tanh: bool) -> Value:
        return self._unary("Gelu", x, approximate="tanh" if tanh else "none")

    def softplus(self, x: Value) -> Value:
        return self._unary("Softplus", x)

    def expm1(self, x: Value) -> Value:
        half = self.tanh(self.mul(x, 0.5))  # accurate near 0, where exp(x) - 1 cancels
        return self.div(self.mul(half, 2.0), self.sub(1.0, half))

    def sqrt(self, x: Value) -> Value:
        return self._unary("Sqrt", x)

    def sin(self, x: Value) -> Value:
        return self._unary("Sin", x)

    def cos(self, x: Value) -> Value:
        return self._unary("Cos", x)

    def softmax(self, x: Value) -> Value:
        x = x if _last_kept(x) else self.settled(x)
        return self.emit_elementwise("Softmax", [x], axis=-1)

    def mean(self, x: Value) -> Value:
        return self._reduced("ReduceMean", x)

    def reduce_max(self, x: Value) -> Value:
        return self._reduced("ReduceMax", x)

    def _reduced(self, op: str, x: Value) -> Value:
        if x.shape[-1] == 1:
            return x
        x = x if _last_kept(x) else self.settled(x)
        y = self.emit(op, [x.viewed(x.stored), self.constant([-1], "int64")], (*x.stored[:-1], 1), keepdims=1)
        return y.viewed((*x.shape[:-1], 1))

    def top_k(self, x: Value, count: int) -> tuple[Value, Value]:
        shape = (*x.shape[:-1], count)
        values, indices = self.emit_many("TopK", [x, self.constant([count], "int64")], [shape, shape], axis=-1)
        return values, replace(indices, dtype="int64")

    def gather(self, x: Value, indices: Value) -> Value:
        return self.emit("GatherElements", [x, indices], indices.shape, axis=len(x.shape) - 1)

    # -- shapes

    def cast(self, x: Value, dtype: str) -> Value:
        return self.emit_elementwise("Cast", [x], dtype, to=ONNX_TYPES[dtype])

    def to_int8(self, x: Value) -> Value:
        return self.cast(self._unary("Round", x), "int8")

    def straight_through(self, y: Value, x: Value) -> Value:
        return y

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x.viewed(resolved(x.shape, shape))

    def unsqueeze(self, x: Value, axis: int) -> Value:
        axis %= len(x.shape) + 1
        return x.viewed((*x.shape[:axis], 1, *x.shape[axis:]))

    def squeeze(self, x: Value, axis: int) -> Value:
        axis %= len(x.shape)
        assert x.shape[axis] == 1, (x, axis)
        return x.viewed((*x.shape[:axis], *x.shape[axis + 1 :]))

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        shape = [x.shape[a] for a in axes]
        moved = [a for a in axes if x.shape[a] != 1]
        if moved == sorted(moved):  # only axes of size 1 move
            return x.viewed(shape)
        return self.emit("Transpose", [x], shape, perm=list(axes))

    def split(self, x: Value, sizes: Sequence[int], axis: int = -1) -> list[Value]:
        if len(sizes) == 1:
            return [x]
        axis %= len(x.shape)
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        stored, place, each = x.shape, axis, 1
        inner = product(x.shape[axis + 1 :])
        if isinstance(inner, int) and x.stored[-1] == product(x.shape[axis:]):  # stored as one axis
            stored, place, each = x.stored, len(x.stored) - 1, inner
        lengths = [size * each for size in sizes]
        parts = [(*stored[:place], length, *stored[place + 1 :]) for length in lengths]
        values = self.emit_many("Split", [x.viewed(stored), self.constant(lengths, "int64")], parts, axis=place)
        split = [value.viewed(shape) for value, shape in zip(values, shapes, strict=True)]
        if axis == 1:
            self._wholes[tuple(split)] = x, sizes
        return split

    def each(self, function: Callable[[Value], Value], *heads: Value) -> list[Value]:
        if heads not in self._wholes:
            return super().each(function, *heads)
        whole, sizes = self._wholes[heads]
        return self.split(function(whole), sizes, axis=1)

    def rotate(self, x: Value, cos: Value, sin: Value) -> Value:
        # five nodes: [a, b] ⊙ [cos, cos] + [b, a] ⊙ [-sin, sin], whose tables all layers share
        half, d = cos.shape[-1], x.shape[-1]
        assert isinstance(half, int) and isinstance(d, int)
        if d > 2 * half:
            turning, rest = self.split(x, [2 * half, d - 2 * half])
            return self.concat([self.rotate(turning, cos, sin), rest])
        a, b = self.split(x, [half, half])
        cosines, sines = self.concat([cos, cos]), self.concat([self.mul(sin, -1.0), sin])
        return self.add(self.mul(x, cosines), self.mul(self.concat([b, a]), sines))

    def concat(self, parts: Sequence[Value], axis: int = -1) -> Value:
        if len(parts) == 1:
            return parts[0]
        axis %= len(parts[0].shape)
        total: Dim = 0
        for part in parts:
            total = plus(total, part.shape[axis])
        shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
        return self.emit("Concat", parts, shape, axis=axis)

    def repeat_heads(self, x: Value, heads: int) -> Value:
        B, G, T, d = x.shape
        if G == heads:
            return x
        assert isinstance(G, int) and isinstance(d, int)
        n, axes = heads // G, () if T == 1 else (T,)
        whole = x.viewed((B, G, 1, *axes, d))
        x = self.emit("Expand", [whole, self.constant([n, *(1 for _ in axes), 1], "int64")], (B, G, n, *axes, d))
        return x.viewed((B, heads, T, d))

    def slice_from(self, x: Value, start: int) -> Value:
        return x if start == 0 else self.sliced(x, start, END, 2, plus(x.shape[2], -start))

    def slice_last(self, x: Value, count: int) -> Value:
        return self.sliced(x, -count, END, 2, count)

    def drop_last(self, x: Value, count: int) -> Value:
        return self.sliced(x, 0, -count, 2, plus(x.shape[2], -count))

    def pad_front(self, x: Value, count: int) -> Value:
        ends, zero, axes = self.constant([count, 0], "int64"), self.constant(0.0, "float32"), [2]
        shape = (*x.shape[:2], plus(x.shape[2], count), *x.shape[3:])
        return self.emit("Pad", [x, ends, zero, self.constant(axes, "int64")], shape)

    def digits(self, x: Value, base: int, count: int) -> Value:
        # base^count would overflow int32, the quotients do not
        places = range(count)
        quotients = self.div(self.unsqueeze(x, -1), self.constant([base**i for i in places], x.dtype))
        return self.add(self.remainder(quotients, base), self.constant([i * base for i in places], x.dtype))


def _last_kept(x: Value) -> bool:
    """Whether the last logical axis is also the last stored axis."""
    return not x.shape or x.shape[-1] == x.stored[-1]


def _alike(x: Value, large: Value) -> bool:
    """Whether x broadcasts to `large` in their stored shapes: x is a scalar, a row of the last axis, or has the same
    logical and stored shapes, possibly with another last axis."""
    if not x.shape or (x.shape, x.stored) == (large.shape, large.stored):
        return True
    if not (_last_kept(x) and _last_kept(large)):
        return False
    same = (x.shape[:-1], x.stored[:-1]) == (large.shape[:-1], large.stored[:-1])
    return same or len(x.shape) == len(x.stored) == 1
