"""Records an ONNX graph: nodes, weights by name, constants, and all shapes.

Unlike tracing with torch.onnx.export, recording gives exactly the nodes that the model defines, weights keep their
names from the checkpoint, and nothing is copied until the file is written.

The recorder knows every shape and delays reshapes: a Reshape node is added only when an operator needs it. A value has
a logical shape, which the model sees, and a stored shape, which its tensor has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from t2r_export.graph.nodes import needed
from t2r_export.graph.weights import Weight

Dim = int | str  # if unknown: a letter, a product of letters and a number ("3*T"), or a sum
Shape = tuple[Dim, ...]
ONNX_TYPES = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: name, dtype, logical shape, and stored shape if that differs."""

    name: str
    dtype: str
    shape: Shape
    stored_as: Shape | None = None

    @property
    def stored(self) -> Shape:
        return self.shape if self.stored_as is None else self.stored_as

    def viewed(self, shape: Sequence[Dim]) -> Value:
        """The same data with another logical shape."""
        shape = tuple(shape)
        return replace(self, shape=shape, stored_as=None if shape == self.stored else self.stored)


class Recorder:
    """Args: model: its parameters and buffers become initializers under their own names."""

    def __init__(self, model: nn.Module) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Weight] = {}  # used initializers, in order of use
        self.constants: dict[str, onnx.TensorProto] = {}
        self.declared: list[Value] = []  # values whose shapes ONNX cannot infer
        self.shapes: dict[str, Shape] = {}  # of all node outputs
        self._names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        self._made: dict[tuple[str, ...], list[Value]] = {}  # node outputs, keyed by operator, inputs and attributes
        self._count = 0

    def emit(
        self,
        op: str,
        inputs: Sequence[Value],
        shape: Sequence[Dim],
        dtype: str | None = None,
        name: str = "",
        **attributes: Any,
    ) -> Value:
        """Add a node with one output. Inputs are used in their logical shape."""
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
        names = [self.settled(value).name for value in inputs]
        return self._node(op, names, dtype or inputs[0].dtype, shapes, name, **attributes)

    def _node(
        self, op: str, inputs: list[str], dtype: str, shapes: Sequence[Sequence[Dim]], name: str = "", **attributes: Any
    ) -> list[Value]:
        same = (op, *inputs, *map(repr, sorted(attributes.items())))
        if not name and same in self._made:
            return self._made[same]
        self._count += 1
        name = name or f"{op}_{self._count}"
        outputs = [Value(f"{name}.out{i or ''}", dtype, tuple(shape)) for i, shape in enumerate(shapes)]
        self.shapes.update((v.name, v.shape) for v in outputs)
        if attributes.get("domain"):
            self.declared.extend(outputs)
        self.nodes.append(helper.make_node(op, inputs, [v.name for v in outputs], name=name, **attributes))
        self._made[same] = outputs
        return outputs

    def emit_elementwise(self, op: str, inputs: Sequence[Value], dtype: str | None = None, **attributes: Any) -> Value:
        """Add an elementwise node on the stored shapes of its inputs, which must agree."""
        like = inputs[0]
        (y,) = self._node(op, [v.name for v in inputs], dtype or like.dtype, [like.stored], **attributes)
        return y.viewed(like.shape)

    def settled(self, value: Value) -> Value:
        """The value, stored in its logical shape."""
        if value.stored == value.shape:
            return value
        sizes = self.constant(reshape_sizes(value.stored, value.shape), "int64")
        return self._node("Reshape", [value.name, sizes.name], value.dtype, [value.shape])[0]

    def parameter(self, tensor: Any) -> Value:
        if isinstance(tensor, Value):
            return tensor
        name = self._names[id(tensor)]
        self.weights[name] = tensor
        return Value(name, "float32", tuple(tensor.shape))

    def stacked(self, tensors: Sequence[Tensor]) -> Value:
        """Concatenate weights along the first axis under a joint name: a.gate.weight and a.up.weight become
        a.gate_up.weight. The data is joined when it is written."""
        names = [self._names[id(tensor)].split(".") for tensor in tensors]
        (place, kind) = {(".".join(parts[:-2]), parts[-1]) for parts in names}.pop()
        name = ".".join([*filter(None, [place]), "_".join(parts[-2] for parts in names), kind])
        self.weights[name] = tuple(tensors)
        rows = sum(len(tensor) for tensor in tensors)
        return Value(name, "float32", (rows, *tensors[0].shape[1:]))

    def constant(self, array: Any, dtype: str, name: str = "") -> Value:
        """A constant, stored once and shared. Large constants need a name."""
        array = np.asarray(array, dtype)
        same = array.size > 64 and (array == array.flat[0]).all()  # avoids a separate name for each row of zeros
        values = f"{array.flat[0]}s{array.size}" if same else "x".join(map(str, array.ravel().tolist()))
        name = f"const_{name or f'{dtype}_{values}_{array.ndim}'}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
        return Value(name, dtype, array.shape)

    def scalar(self, x: Value) -> Value:
        """x (1,) -> scalar, as a separate node because OpenVINO does not support Reshape to ()."""
        return self.emit("Squeeze", [x], (), x.dtype)

    def sliced(self, x: Value, start: int, end: int, axis: int, length: Dim) -> Value:
        """Slice x from `start` to `end` along an axis; `length` elements. Negative values count from the end."""
        bounds = [self.constant([n], "int64") for n in (start, end, axis)]
        return self.emit("Slice", [x, *bounds], (*x.shape[:axis], length, *x.shape[axis + 1 :]))

    def unique_name(self, weight: Value, op: str) -> str:
        """An unused node name after a weight's, so that later stages find 'head' or 'blocks.0.parts.1.down'."""
        name = weight.name.removesuffix(".weight")
        taken = {node.name for node in self.nodes if node.name.startswith(name)}
        others = itertools.chain([name, f"{name}_{op}"], (f"{name}_{op}_{i}" for i in itertools.count(2)))
        return next(other for other in others if other not in taken)

    def rename(self, names: dict[str, str]) -> None:
        """Rename tensors at their producer and at all consumers."""
        self.declared = [replace(v, name=names.get(v.name, v.name)) for v in self.declared]
        self.shapes = {names.get(name, name): shape for name, shape in self.shapes.items()}
        for node in self.nodes:
            for field in (node.input, node.output):
                for i, name in enumerate(field):
                    field[i] = names.get(name, name)

    def prune(self, outputs: Sequence[str]) -> None:
        """Remove nodes that no output needs."""
        self.nodes = needed(self.nodes, outputs)
        used = {name for node in self.nodes for name in node.input}
        self.weights = {name: weight for name, weight in self.weights.items() if name in used}
        self.constants = {name: constant for name, constant in self.constants.items() if name in used}


def value_info(value: Value) -> onnx.ValueInfoProto:
    """The declaration of a graph input or output."""
    return helper.make_tensor_value_info(value.name, ONNX_TYPES[value.dtype], value.shape)


# -- shapes


def factors(dim: Dim) -> tuple[int, list[str]]:
    """Split a dimension into a number and letters: '3*T' -> (3, ['T']). A sum counts as one letter."""
    if isinstance(dim, int):
        return dim, []
    parts = [dim] if "+" in dim else dim.split("*")
    numbers = [int(part) for part in parts if part.isdigit()]
    return math.prod(numbers), [part for part in parts if not part.isdigit()]


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dimensions: ('B', 3, 'T') -> '3*B*T'."""
    number, letters = 1, list[str]()
    for dim in dims:
        n, more = factors(dim)
        number, letters = number * n, letters + more
    if not letters or number == 0:
        return number
    return "*".join([*([str(number)] if number != 1 else []), *sorted(letters)])


def quotient(whole: Dim, part: Dim) -> Dim:
    """The quotient of two dimensions."""
    number, letters = factors(whole)
    n, more = factors(part)
    for letter in more:
        letters.remove(letter)
    assert number % n == 0, (whole, part)
    return product([number // n, *letters])


def resolved(shape: Sequence[Dim], requested: Sequence[int]) -> Shape:
    """The result of `Ops.reshape`: 0 keeps the axis at that index, -1 is inferred."""
    # the axes that are not kept; kept ones may be sums
    rest = product([d for i, d in enumerate(shape) if i >= len(requested) or requested[i] != 0])
    inferred = quotient(rest, product([size for size in requested if size > 0])) if -1 in requested else 1
    assert product([inferred, *(size for size in requested if size > 0)]) == rest, (shape, requested)
    return tuple(shape[i] if size == 0 else inferred if size == -1 else size for i, size in enumerate(requested))


def reshape_sizes(stored: Shape, shape: Shape) -> list[int]:
    """The shape input of a Reshape: one letter becomes -1, others must keep their index."""
    letters = [i for i, d in enumerate(shape) if isinstance(d, str)]
    moved = [i for i in letters if i >= len(stored) or stored[i] != shape[i]]
    assert len(letters) <= 1 or len(moved) <= 1, (stored, shape)
    free = letters if len(letters) == 1 else moved
    return [-1 if i in free else 0 if isinstance(d, str) else d for i, d in enumerate(shape)]


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> Shape:
    """NumPy's broadcasting rule; letters are equal only to themselves."""
    rank = max(len(a), len(b))
    pairs = zip([1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b), strict=True)
    result: list[Dim] = []
    for m, n in pairs:
        assert m == n or 1 in (m, n), (a, b)
        result.append(n if m == 1 else m)
    return tuple(result)


def plus(a: Dim, b: Dim) -> Dim:
    """The sum of two lengths: P and T make 'P+T', T and T '2*T', and 'T+4' and -4 are T."""
    terms: dict[tuple[str, ...], int] = {}
    for dim in (a, b):
        for term in [dim] if isinstance(dim, int) else dim.split("+"):
            number, letters = factors(int(term) if isinstance(term, str) and term.lstrip("-").isdigit() else term)
            terms[tuple(letters)] = terms.get(tuple(letters), 0) + number
    constant = terms.pop((), 0)
    parts = [str(product([number, *letters])) for letters, number in terms.items() if number]
    if not parts:
        return constant
    return "+".join([*parts, *([str(constant)] if constant else [])])
