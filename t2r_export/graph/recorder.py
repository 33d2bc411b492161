"""The operators of `t2r_export.model.ops` as a recorder: running a step with `GraphOps` writes its ONNX graph.

The usual way is to trace the module with torch.onnx.export. Written out instead, the graph has exactly the nodes that
the step names, weights keep their names from the checkpoint, and nothing is copied until the file is written. What is
given up: an operator that is not listed here cannot be used in a step.

Every operator here belongs to the default domain at opset 21, so that any provider may take it; other targets are
subclasses (t2r_export.graph.targets). Reshape's -1 is the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from t2r_export.graph.nodes import needed
from t2r_export.graph.prefill import Prompt, by_sequence, chunked
from t2r_export.graph.weights import Weight
from t2r_export.model.ops import TorchOps, row_size

Dim = int | str
_ONNX_TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: its name, its dtype, and its shape with letters where a number is not known."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


class GraphOps(TorchOps):
    """The same methods as `TorchOps`; each adds nodes and returns the `Value` that they compute.

    Args:
        model: whose parameters and buffers become initializers, under their own names.
        batch: what stands for the batch in shapes: a letter, or a number for a static graph.
    """

    def __init__(self, model: nn.Module, batch: Dim) -> None:
        self.batch = batch
        self.prompt: Prompt | None = None  # where the graph reads many tokens at once
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Weight] = {}  # those that the step used, in order of use
        self.constants: dict[str, onnx.TensorProto] = {}
        self.declared: list[Value] = []  # those whose shapes ONNX cannot infer
        named = [*model.named_parameters(), *model.named_buffers()]
        self._names = {id(tensor): name for name, tensor in named}
        self.sums: dict[str, tuple[Value, Value]] = {}  # of two tensors of one shape, by the name of what they give
        self.low: dict[str, Value] = {}  # by a state's name: what its sum has rounded off so far, where that is kept
        self.low_after: dict[str, Value] = {}  # and after this step, of the states that are sums
        self._count = 0
        self._hint = ""

    # -- recording

    def emit(
        self,
        op: str,
        inputs: Sequence[Value],
        shape: Sequence[Dim],
        dtype: str | None = None,
        name: str = "",
        **attributes: Any,
    ) -> Value:
        """Add one node with one output."""
        return self.emit_many(op, inputs, [shape], dtype, name, **attributes)[0]

    def emit_many(
        self,
        op: str,
        inputs: Sequence[Value],
        shapes: Sequence[Sequence[Dim]],
        dtype: str | None = None,
        name: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Add one node. The outputs have the dtype of the first input unless another is given."""
        self._count += 1
        name = name or f"{op}_{self._count}"
        outputs = [
            Value(f"{name}.out{i or ''}", dtype or inputs[0].dtype, tuple(shape)) for i, shape in enumerate(shapes)
        ]
        if attributes.get("domain"):
            self.declared.extend(outputs)
        self.nodes.append(
            helper.make_node(op, [v.name for v in inputs], [v.name for v in outputs], name=name, **attributes)
        )
        return outputs

    def parameter(self, tensor: Any) -> Any:
        if isinstance(tensor, Value):
            return tensor
        name = self._names[id(tensor)]
        self.weights[name] = tensor
        return Value(name, "float32", tuple(tensor.shape))

    def constant(self, array: Any, dtype: str, name: str = "") -> Value:
        """A small constant, stored once for all its uses; a large one wants a name."""
        array = np.asarray(array, dtype)
        same = array.size > 64 and (array == array.flat[0]).all()  # a row of zeros is not named for each of them
        values = f"{array.flat[0]}s{array.size}" if same else "x".join(map(str, array.ravel().tolist()))
        name = f"const_{name or f'{dtype}_{values}_{array.ndim}'}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
        return Value(name, dtype, array.shape)

    def rename(self, names: dict[str, str]) -> None:
        """Give tensors their final names, at their producer and at every consumer."""
        self.declared = [replace(v, name=names.get(v.name, v.name)) for v in self.declared]
        for node in self.nodes:
            for field in (node.input, node.output):
                for i, name in enumerate(field):
                    field[i] = names.get(name, name)

    def prune(self, outputs: Sequence[str]) -> None:
        """Drop what no output needs, as the angles of a rotation that every layer leaves out."""
        self.nodes = needed(self.nodes, outputs)
        used = {name for node in self.nodes for name in node.input}
        self.weights = {name: weight for name, weight in self.weights.items() if name in used}
        self.constants = {name: constant for name, constant in self.constants.items() if name in used}

    def _operand(self, x: Any, like: Value) -> Value:
        if isinstance(x, int | float):
            return self.constant(x, like.dtype)
        return x if isinstance(x, Value) else self.parameter(x)

    def _unique(self, weight: Value, op: str) -> str:
        """A node named for its weight, so that later stages find 'head' or 'blocks.0.ffn.down' by name."""
        name = weight.name.removesuffix(".weight")
        taken = {node.name for node in self.nodes if node.name.startswith(name)}
        others = itertools.chain([name, f"{name}_{op}"], (f"{name}_{op}_{i}" for i in itertools.count(2)))
        return next(other for other in others if other not in taken)

    def _binary(self, op: str, a: Any, b: Any) -> Value:
        like = a if isinstance(a, Value) else b
        a, b = self._operand(a, like), self._operand(b, like)
        return self.emit(op, [a, b], _broadcast(a.shape, b.shape))

    def _unary(self, op: str, x: Value, **attributes: Any) -> Value:
        return self.emit(op, [x], x.shape, **attributes)

    # -- the operators

    def embedding(self, ids: Value, table: Tensor) -> Value:
        weight = self.parameter(table)
        return self.emit("Gather", [weight, ids], (*ids.shape, weight.shape[1]), name=self._unique(weight, "gather"))

    def linear(self, x: Value, weight: Tensor, bias: Tensor | None) -> Value:
        assert len(x.shape) == 2, "Gemm takes matrices, and a [1, 1, D] input costs two reshapes on the CPU provider"
        matrix = self.parameter(weight)
        inputs = [x, matrix, *self._bias(matrix, None if bias is None else self.parameter(bias))]
        shape = (x.shape[0], weight.shape[0])
        return self.emit("Gemm", inputs, shape, name=self._unique(matrix, "gemm"), transB=1)

    def linears(self, x: Value, groups: Sequence[Sequence[nn.Linear]]) -> list[Value]:
        layers = [layer for group in groups for layer in group]
        weight = self._stacked([layer.weight for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        assert len(biases) in (0, len(layers)), "a bias for all, or for none"
        inputs = [x, weight, *self._bias(weight, self._stacked(biases) if biases else None)]
        y = self.emit("Gemm", inputs, (x.shape[0], weight.shape[0]), name=self._unique(weight, "gemm"), transB=1)
        sizes = [sum(layer.out_features for layer in group) for group in groups]
        return self.split(y, sizes) if len(sizes) > 1 else [y]

    def _stacked(self, tensors: Sequence[Tensor]) -> Value:
        """Weights as one, one below the other, with a name of theirs together: a.gate.weight and a.up.weight are
        a.gate_up.weight. They are joined when they are written, not here."""
        names = [self._names[id(tensor)].split(".") for tensor in tensors]
        (place, kind) = {(".".join(parts[:-2]), parts[-1]) for parts in names}.pop()
        name = ".".join([*filter(None, [place]), "_".join(parts[-2] for parts in names), kind])
        self.weights[name] = tuple(tensors)
        rows = sum(len(tensor) for tensor in tensors)
        return Value(name, "float32", (rows, *tensors[0].shape[1:]))

    def _bias(self, weight: Value, bias: Value | None) -> list[Value]:
        """What a Gemm adds: one tensor, or none."""
        return [] if bias is None else [bias]

    def layer_norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value:
        inputs = [x, self.parameter(weight), self.parameter(bias)]
        return self.emit("LayerNormalization", inputs, x.shape, axis=-1, epsilon=eps)

    def rms_norm(self, x: Value, weight: Tensor | None, eps: float) -> Value:
        # RMSNormalization needs opset 23; this spelling is the one that ONNX Runtime fuses into one kernel
        square = self._binary("Pow", x, self.constant(2.0, "float32"))
        root = self._unary("Sqrt", self._binary("Add", self.mean(square), eps))
        normed = self._binary("Div", x, root)
        return normed if weight is None else self._binary("Mul", normed, self.parameter(weight))

    def add(self, a: Any, b: Any) -> Value:
        total = self._binary("Add", a, b)
        if isinstance(a, Value) and isinstance(b, Value) and a.shape == b.shape:
            self.sums[total.name] = (a, b)
        return total

    def accumulate(self, state: Value, increment: Value) -> Value:
        """Compensated where `low` has the state: Dekker 1971's two-sum, twice, is exact to the last digit of two.

        An accelerator that adds in float16 stops counting at 2,048 equal terms; with the low part it goes on.
        """
        if state.name not in self.low:
            return self.add(state, increment)
        total, rest = self._two_sum(state, increment)
        total, self.low_after[state.name] = self._two_sum(total, self.add(self.low[state.name], rest))
        return total

    def _two_sum(self, large: Value, small: Value) -> tuple[Value, Value]:
        """large + small and what that rounds off, for |large| >= |small|."""
        total = self.add(large, small)
        return total, self.sub(small, self.sub(total, large))

    def sub(self, a: Any, b: Any) -> Value:
        return self._binary("Sub", a, b)

    def mul(self, a: Any, b: Any) -> Value:
        return self._binary("Mul", a, b)

    def div(self, a: Any, b: Any) -> Value:
        return self._binary("Div", a, b)

    def maximum(self, x: Value, low: float) -> Value:
        return self._binary("Max", x, low)

    def minimum(self, x: Value, high: float) -> Value:
        return self._binary("Min", x, high)

    def matmul(self, a: Any, b: Any) -> Value:
        like = a if isinstance(a, Value) else b
        a, b = self._operand(a, like), self._operand(b, like)
        assert a.shape[-1] == b.shape[-2], (a, b)
        return self.emit("MatMul", [a, b], (*_broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))

    def relu(self, x: Value) -> Value:
        return self._unary("Relu", x)

    def exp(self, x: Value) -> Value:
        return self._unary("Exp", x)

    def sigmoid(self, x: Value) -> Value:
        return self._unary("Sigmoid", x)

    def log_sigmoid(self, x: Value) -> Value:
        # not Log(Sigmoid(x)): ONNX Runtime's Sigmoid on the CPU is up to 1.4e-7 off where it is nearly 1
        return self._unary("Neg", self._unary("Softplus", self._unary("Neg", x)))

    def elu(self, x: Value) -> Value:
        return self._unary("Elu", x)

    def mean(self, x: Value) -> Value:
        return self.emit("ReduceMean", [x, self.constant([-1], "int64")], (*x.shape[:-1], 1), keepdims=1)

    def largest(self, x: Value) -> Value:
        return self.emit("ReduceMax", [x, self.constant([-1], "int64")], (*x.shape[:-1], 1), keepdims=1)

    def silu(self, x: Value) -> Value:
        return self._binary("Mul", x, self.sigmoid(x))

    def tanh(self, x: Value) -> Value:
        return self._unary("Tanh", x)

    def gelu(self, x: Value, tanh: bool) -> Value:
        return self._unary("Gelu", x, approximate="tanh" if tanh else "none")

    def sin(self, x: Value) -> Value:
        return self._unary("Sin", x)

    def cos(self, x: Value) -> Value:
        return self._unary("Cos", x)

    def softmax(self, x: Value) -> Value:
        return self._unary("Softmax", x, axis=-1)

    def top_k(self, x: Value, count: int) -> tuple[Value, Value]:
        shape = (*x.shape[:-1], count)
        values, places = self.emit_many("TopK", [x, self.constant([count], "int64")], [shape, shape], axis=-1)
        return values, replace(places, dtype="int64")

    def take_along(self, x: Value, places: Value) -> Value:
        return self.emit("GatherElements", [x, places], places.shape, axis=len(x.shape) - 1)

    def cast(self, x: Value, dtype: str) -> Value:
        return self.emit("Cast", [x], x.shape, dtype, to=_ONNX_TYPES[dtype])

    def reshape(self, x: Any, shape: Sequence[int]) -> Value:
        x = self._operand(x, x)
        rows = self.batch if self.prompt is None else self.prompt.rows
        known = tuple(rows if d == -1 else d for d in shape)
        sizes = [-1 if isinstance(d, str) else d for d in known]
        return self.emit("Reshape", [x, self.constant(sizes, "int64")], known)

    def unsqueeze(self, x: Value, axis: int) -> Value:
        axis %= len(x.shape) + 1
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        return self.emit("Unsqueeze", [x, self.constant([axis], "int64")], shape)

    def digits(self, x: Value, base: int, count: int) -> Value:
        # no Mod, which WebGPU lacks; base^count would be past the end of an int32, the quotients are not
        places = range(count)
        quotients = self.div(self.unsqueeze(x, -1), self.constant([base**i for i in places], x.dtype))
        rest = self.sub(quotients, self.mul(self.div(quotients, base), base))
        return self.add(rest, self.constant([i * base for i in places], x.dtype))

    def squeeze(self, x: Value, axis: int) -> Value:
        axis %= len(x.shape)
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return self.emit("Squeeze", [x, self.constant([axis], "int64")], shape)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        return self.emit("Transpose", [x], [x.shape[a] for a in axes], perm=list(axes))

    def split(self, x: Value, sizes: Sequence[int], axis: int = -1) -> list[Value]:
        axis %= len(x.shape)
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        return self.emit_many("Split", [x, self.constant(list(sizes), "int64")], shapes, axis=axis)

    def concat(self, parts: Sequence[Value], axis: int = -1) -> Value:
        axis %= len(parts[0].shape)
        total: Dim = 0
        for part in parts:
            size = part.shape[axis]
            total = _plus(total, size)
        shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
        return self.emit("Concat", parts, shape, axis=axis)

    def rows(self, x: Value) -> Value:
        if len(x.shape) == 2:
            return x
        self.prompt = Prompt.of(x, self)
        return self.emit("Reshape", [x, self.constant([-1, x.shape[2]], "int64")], (self.prompt.rows, x.shape[2]))

    def positions(self, start: Value, rows: Value) -> tuple[Value, Value]:
        if self.prompt is None:
            return start, self.add(start, 1)
        tokens = self.cast(self.prompt.tokens, start.dtype)
        steps = self._range(self.constant([0], start.dtype), tokens, self.prompt.length)
        return self.reshape(self.add(self.unsqueeze(start, 1), steps), (-1,)), self.add(start, tokens)

    def _range(self, start: Value, end: Value, length: Dim) -> Value:
        """start … end - 1, both (1,)."""
        bounds = [self.squeeze(start, 0), self.squeeze(end, 0), self.constant(1, end.dtype)]
        return self.emit("Range", bounds, (length,), end.dtype)

    def by_head(self, x: Value, groups: int, size: int, state: Value) -> Value:
        if self.prompt is None:
            return self.reshape(x, (-1, groups, row_size(x) // (groups * size), size))
        heads = row_size(x) // (groups * size)
        x = self.transpose(by_sequence(self, x, groups, heads, size), (0, 2, 3, 1, 4))
        tokens = "+".join([str(self.prompt.length)] * heads)
        return self.emit("Reshape", [x, self.constant([0, 0, -1, size], "int64")], (*x.shape[:2], tokens, size))

    def by_row(self, y: Value, per_group: int) -> Value:
        _, groups, _, size = y.shape
        assert isinstance(groups, int) and isinstance(size, int)
        if self.prompt is not None:
            sizes = self.constant([0, 0, per_group, -1, size], "int64")
            y = self.emit("Reshape", [y, sizes], (*y.shape[:2], per_group, self.prompt.length, size))
            y = self.transpose(y, (0, 3, 1, 2, 4))
        return self.reshape(y, (-1, groups * per_group * size))

    def unseen(self, past: Value, new: Value, window: int | None = None) -> Value:
        before, tokens = (self.emit("Shape", [x], (1,), "int64", start=2, end=3) for x in (past, new))
        length, total = new.shape[2], _plus(past.shape[2], new.shape[2])
        end = self.add(before, tokens)
        other = self._range(self.constant([0], "int64"), end, total)
        own = self.unsqueeze(self._range(before, end, length), 1)
        hidden = self.emit("Greater", [other, own], (length, total), "bool")
        if window is not None:
            early = self.emit("LessOrEqual", [other, self.sub(own, window)], hidden.shape, "bool")
            hidden = self.emit("Or", [hidden, early], hidden.shape)
        return self.cast(hidden, "float32")

    def newest(self, x: Value, count: int) -> Value:
        return self._along(x, -count, np.iinfo(np.int64).max, count)

    def oldest(self, x: Value, count: int) -> Value:
        length = x.shape[2]
        return self._along(
            x, 0, -count, length - count if isinstance(length, int) else length.removesuffix(f"+{count}")
        )

    def _along(self, x: Value, start: int, end: int, length: Dim) -> Value:
        bounds = [self.constant([n], "int64") for n in (start, end, 2)]
        return self.emit("Slice", [x, *bounds], (*x.shape[:2], length, *x.shape[3:]))

    def places(self, x: Value) -> Value:
        tokens = self.emit("Shape", [x], (1,), "int64", start=2, end=3)
        # cast afterwards: ONNX Runtime's shape inference takes a number from a shape for 64 bits, whatever was cast
        return self.cast(self._range(self.constant([0], "int64"), tokens, x.shape[2]), "int32")

    def last(self, x: Value, ids: Value) -> Value:
        if self.prompt is None:
            return x
        x = by_sequence(self, x, row_size(x))
        return self.emit("Gather", [x, self.constant(-1, "int64")], (x.shape[0], x.shape[2]), axis=1)

    def sequences(self, x: Value) -> Value:
        return x

    def linear_attention(
        self, q: Value, k: Value, v: Value, S: Value, z: Value | None, log_gate: Value | None = None,
        beta: Value | None = None,
    ) -> tuple[Value, Value | None, Value, Value | None]:  # fmt: skip
        if self.prompt is None:
            return super().linear_attention(q, k, v, S, z, log_gate, beta)  # it is written in the operators above
        return chunked(self, q, k, v, S, z, log_gate, beta)


def value_info(value: Value) -> onnx.ValueInfoProto:
    """The declaration of a graph input or output."""
    return helper.make_tensor_value_info(value.name, _ONNX_TYPES[value.dtype], value.shape)


def _broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """NumPy's rule, with letters equal only to themselves."""
    rank = max(len(a), len(b))
    pairs = zip([1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b), strict=True)
    result: list[Dim] = []
    for m, n in pairs:
        assert m == n or 1 in (m, n), (a, b)
        result.append(n if m == 1 else m)
    return tuple(result)


def _plus(a: Dim, b: Dim) -> Dim:
    """The sum of two lengths: T and 1 make 'T+1'."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    first, second = (a, b) if isinstance(a, str) else (b, a)
    return first if second == 0 else f"{first}+{second}"
