"""Embedding tables: 8 bits with one scale, or the quantized values of a tied head.

With tied weights, tokens are looked up in the head's quantized matrix by standard operators, so only one matrix is
stored. (OpenVINO lacks GatherBlockQuantized, and WebGPU's does not support 4-bit zero points.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from t2r_export.graph.nodes import initializers
from t2r_export.graph.weights import Weight, array, refer, shape, values
from t2r_export.quantizers.base import replace_initializers, replace_node
from t2r_runtime.contract.signature import INPUT_IDS, SOURCE_IDS

TABLE_ROWS = 4096  # table rows rounded at a time
OWN = ".table"  # name suffix of an untied table


def table_of(model: onnx.ModelProto) -> onnx.NodeProto:
    """The node that looks tokens up."""
    found: onnx.NodeProto = next(
        node for node in model.graph.node if node.op_type == "Gather" and node.input[1] in (INPUT_IDS, SOURCE_IDS)
    )
    return found


def has_table(model: onnx.ModelProto) -> bool:
    """Whether the graph looks tokens up; one that reads vectors does not."""
    return any(value.name in (INPUT_IDS, SOURCE_IDS) for value in model.graph.input)


def untie_embedding(model: onnx.ModelProto) -> onnx.NodeProto:
    """Give the node that looks tokens up a separate table, named unlike the head's weight; returns the node."""
    gather = table_of(model)
    name, weights = gather.input[0], initializers(model)
    if not name.endswith(OWN):
        own = name + OWN
        weights[own] = onnx.TensorProto()
        weights[own].CopyFrom(weights[name])
        weights[own].name = gather.input[0] = own
        replace_initializers(model, weights)
    return gather


def quantize_embedding(model: onnx.ModelProto, weights: dict[str, Weight]) -> None:
    """Quantize the embedding table to 8 bits with one scale, as Gather and DequantizeLinear.

    The measured loss is a hundredth of the finest scheme's; blocks of 4 bits lose a hundred times as much.

    Args:
        weights: receives the quantized values, under their names in the graph.
    """
    gather = untie_embedding(model)
    name, row = gather.input[0], gather.output[0]
    kept = initializers(model)
    table = values(kept[name], weights)  # (vocabulary, D)
    zero_point, scale = _of_table(table)
    numbers = [f"{name}_quantized", f"{name}_scale", f"{name}_zero_point"]
    if numbers[0] not in weights:
        weights[numbers[0]] = _in_bytes(table, scale, zero_point)
    kept |= {
        numbers[0]: refer(numbers[0], weights[numbers[0]]),
        numbers[1]: helper.make_tensor(numbers[1], TensorProto.FLOAT, [], [float(scale)]),
        numbers[2]: helper.make_tensor(numbers[2], TensorProto.UINT8, [], [int(zero_point)]),
    }
    # the default name is already used if a projection directly reads the looked-up row
    inner = f"{row}_quantized.table"
    nodes = [
        helper.make_node("Gather", [numbers[0], gather.input[1]], [inner], name=gather.name),
        helper.make_node("DequantizeLinear", [inner, *numbers[1:]], [row], name=f"{row}_DequantizeLinear"),
    ]
    replace_node(model, gather, nodes, kept)


def _of_table(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Zero point and scale of a table from its minimum and maximum."""
    from onnxruntime.quantization.quant_utils import compute_data_quant_params

    ends = np.array([table.min(), table.max()])
    zero_point, scale = compute_data_quant_params(ends, TensorProto.UINT8, symmetric=False)
    return zero_point, scale


def _in_bytes(table: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    """A table as uint8, rounded in parts: ONNX Runtime's function needs four times the memory of its result."""
    from onnxruntime.quantization.quant_utils import quantize_nparray

    whole = np.empty(table.shape, np.uint8)
    for i in range(0, len(table), TABLE_ROWS):
        rows = slice(i, i + TABLE_ROWS)
        whole[rows] = quantize_nparray(TensorProto.UINT8, table[rows], scale, zero_point)
    return whole


def rounded_table(table: np.ndarray) -> np.ndarray:
    """A float32 table (vocabulary, D) after quantization to 8 bits with one scale."""
    zero_point, scale = _of_table(table)
    numbers = _in_bytes(table, scale, zero_point)
    restored: np.ndarray = (numbers.astype(np.float32) - np.float32(zero_point)) * np.float32(scale)
    return restored


def row_of_blocks(model: onnx.ModelProto, parts: Sequence[str], bits: int, weights: Mapping[str, Weight]) -> None:
    """Look tokens up in the weights of a tied MatMulNBits head.

    Args:
        parts: names in `weights` of values (vocabulary, blocks, bytes) uint8, scales (vocabulary, blocks), float32 or
            float16, and optional zero points (vocabulary, bytes) uint8, packed as in the operator, or offsets
            (vocabulary, blocks) float32 to be added.
    """
    numbers, scales, *more = parts
    offsets = [name for name in more if array(weights[name]).dtype == np.float32]
    zero_points = [name for name in more if name not in offsets]
    row = _Row(model, weights)
    _, blocks, size = shape(weights[numbers])
    size = size * 8 // bits
    middle = 0 if zero_points else 1 << (bits - 1)
    levels = row.real(row.looked_up(numbers), np.uint8(middle if bits == 8 else 0))
    if bits == 4:
        levels = row.shaped(row.halves(levels, (blocks, size // 2)), blocks, size)
        levels = levels if zero_points else row.emit("Sub", levels, row.constant(np.float32(middle)))
    if zero_points:
        places = row.looked_up(zero_points[0])
        if bits == 8:
            places = row.real(row.shaped(places, blocks, 1), np.uint8(0))
        else:
            count = shape(weights[zero_points[0]])[1]
            places = row.shaped(row.halves(row.real(places, np.uint8(0)), (count,)), 2 * count)
            places = row.shaped(row.first(places, blocks, 2 * count), blocks, 1)
        levels = row.emit("Sub", levels, places)
    factors = row.looked_up(scales)
    if array(weights[scales]).dtype == np.float16:
        factors = row.emit("Cast", factors, to=TensorProto.FLOAT)
    scaled = row.emit("Mul", levels, row.shaped(factors, blocks, 1))
    if offsets:
        scaled = row.emit("Add", scaled, row.shaped(row.looked_up(offsets[0]), blocks, 1))
    row.finish(row.first(row.shaped(scaled, blocks * size), row.width, blocks * size))


def row_of_columns(
    model: onnx.ModelProto, parts: Sequence[str], weights: Mapping[str, Weight], channels: str = ""
) -> None:
    """Look tokens up in the weights of a tied MatMulInteger head.

    Args:
        parts: names in `weights` of values (width, vocabulary), int8 or uint8 around 128, and scales per column
            (vocabulary).
        channels: name of scales (width) by which the weights were multiplied, if it is among `weights`.
    """
    numbers, scales = parts
    row, middle = _Row(model, weights), {np.dtype(np.int8): np.int8(0), np.dtype(np.uint8): np.uint8(128)}
    levels = row.emit("Transpose", row.looked_up(numbers, axis=1), perm=[*range(1, row.axes + 1), 0])
    levels = row.real(levels, middle[array(weights[numbers]).dtype])
    if channels in weights:
        levels = row.emit("Mul", levels, row.constant(1 / array(weights[channels])))
    row.finish(row.emit("Mul", levels, row.shaped(row.looked_up(scales), 1)))


class _Row:
    """Builder of the nodes that replace the look-up of tokens."""

    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
        self.model, self.weights, self.gather = model, weights, table_of(model)
        self.kept = initializers(model)
        self.width = self.kept[self.gather.input[0]].dims[1]
        ids = next(value for value in model.graph.input if value.name == self.gather.input[1])
        self.axes = len(ids.type.tensor_type.shape.dim)  # of the token ids: (B) or (B, N)
        self.nodes: list[onnx.NodeProto] = []

    def emit(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        name = f"{self.gather.output[0]}.row{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, numbers: np.ndarray | np.generic) -> str:
        name = f"{self.gather.output[0]}.row{len(self.nodes)}.{len(self.kept)}"
        self.kept[name] = numpy_helper.from_array(np.asarray(numbers), name)
        return name

    def looked_up(self, name: str, axis: int = 0) -> str:
        self.kept[name] = refer(name, self.weights[name])
        return self.emit("Gather", name, self.gather.input[1], axis=axis)

    def real(self, x: str, middle: np.generic) -> str:
        """Integers minus `middle`, of the same dtype, as float32; uses DequantizeLinear, which every provider supports.

        Must be followed by arithmetic: ONNX Runtime 1.31 moves the node past a Reshape with the wrong dtype.
        """
        return self.emit("DequantizeLinear", x, self.constant(np.float32(1)), self.constant(middle))

    def shaped(self, x: str, *sizes: int) -> str:
        """Reshape the axes of x after those of the token ids."""
        return self.emit("Reshape", x, self.constant(np.array([0] * self.axes + [*sizes], np.int64)))

    def halves(self, x: str, sizes: tuple[int, ...]) -> str:
        """Unpack bytes of shape `sizes` (after the axes of the token ids) to two 4-bit values, lower half first."""
        high = self.emit("Floor", self.emit("Mul", x, self.constant(np.float32(1 / 16))))
        low = self.emit("Sub", x, self.emit("Mul", high, self.constant(np.float32(16))))
        return self.emit("Concat", self.shaped(low, *sizes, 1), self.shaped(high, *sizes, 1), axis=-1)

    def first(self, x: str, count: int, there: int) -> str:
        """The first `count` of `there` values on the last axis."""
        if count == there:
            return x
        ends = [self.constant(np.array([n], np.int64)) for n in (0, count, -1)]
        return self.emit("Slice", x, *ends)

    def finish(self, x: str) -> None:
        self.nodes[-1].output[0] = self.gather.output[0]
        assert self.nodes[-1].name == x
        replace_node(self.model, self.gather, self.nodes, self.kept)
