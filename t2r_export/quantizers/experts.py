"""Experts in blocks, in every scheme of integers: QMoE for MoE, else rows of numbers that are looked up.

A step of ordinary operators looks the chosen experts up in the integers and makes them real by ordinary operators; many
tokens do so with all experts. Both forms round a weight as MatMulNBits does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from t2r_export.config.quantize import QuantizeConfig, scheme
from t2r_export.graph.weights import Weight, refer, values
from t2r_export.quantizers.base import initializers, replace_node
from t2r_export.quantizers.blocks import BLOCK_SIZE, MICROSOFT, accuracy_level, in_blocks, parts_of
from t2r_export.quantizers.tables import Row, row_of_blocks

UP, DOWN = 2, 4  # inputs of MoE


def expert_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, list[str]]]:
    """The nodes that read weights of experts (E, out, in), float32, and the names of those: MoE, or a look-up of some
    experts, or a product with all of them."""
    kept = initializers(model)
    for node in model.graph.node:
        names = [node.input[i] for i in {"MoE": (UP, DOWN), "Gather": (0,), "MatMul": (0,)}.get(node.op_type, ())]
        if names and all(name in kept and _is_of_experts(kept[name]) for name in names):
            yield node, names


def _is_of_experts(weight: onnx.TensorProto) -> bool:
    return len(weight.dims) == 3 and weight.data_type == TensorProto.FLOAT


def quantize_experts(model: onnx.ModelProto, config: QuantizeConfig, weights: dict[str, Weight]) -> None:
    """Quantize the experts of `model`.

    Args:
        weights: as in t2r_export.quantizers.blocks.blocks.
    """
    bits = scheme(config.scheme).bits
    for node, names in list(expert_nodes(model)):
        kept = initializers(model)
        if node.op_type == "MoE":
            _qmoe(model, node, config, weights)
            continue
        (name,) = names
        parts = parts_of(name, bits, config)
        if not weights.keys() >= set(parts):
            weights |= zip(parts, _in_blocks(values(kept[name], weights), config), strict=True)
        # chosen experts have two axes, (tokens, top), where the table has one
        axes = len(kept[name].dims) - 1
        row = Row(model, weights, node, axes + 1) if node.op_type == "Gather" else _All(model, weights, node, axes)
        row_of_blocks(row, parts, bits)


def _in_blocks(matrices: np.ndarray, config: QuantizeConfig) -> list[np.ndarray]:
    """Round weights (E, out, in): values (E, out, blocks, bytes) uint8, scales (E, out, blocks) float32 and, where
    asymmetric, zero points (E, out, bytes) uint8."""
    count, rows, columns = matrices.shape
    size, bits = config.block_size or BLOCK_SIZE, scheme(config.scheme).bits
    arrays = in_blocks(matrices.reshape(-1, columns).T, bits, size, config.asymmetric)
    return [array.reshape(count, rows, *array.shape[1:]) for array in arrays]


def _qmoe(model: onnx.ModelProto, node: onnx.NodeProto, config: QuantizeConfig, weights: dict[str, Weight]) -> None:
    """Replace MoE by QMoE, which takes whole blocks alone: narrower models are padded with zeros."""
    kept, size, bits = initializers(model), config.block_size or BLOCK_SIZE, scheme(config.scheme).bits
    x, scores, up, _, down = node.input
    _, width, hidden = kept[down].dims
    halves, padding = kept[up].dims[1] // hidden, -width % size
    found = []
    for name, rows in ((up, halves * (hidden + -hidden % size)), (down, width + padding)):
        parts = parts_of(name, bits, config)
        if not weights.keys() >= set(parts):
            numbers, *others = _in_blocks(values(kept[name], weights), config)
            arrays = [numbers.reshape(*numbers.shape[:2], -1), *others]
            whole = ((0, 0), (0, rows - numbers.shape[1]), (0, 0))
            weights |= {part: np.pad(array, whole) for part, array in zip(parts, arrays, strict=True)}
        kept |= {part: refer(part, weights[part]) for part in parts}
        found.append([*parts, ""][:3])
    (up, up_scales, up_zeros), (down, down_scales, down_zeros) = found
    inputs = [x, scores, up, up_scales, "", down, down_scales, "", "", "", "", up_zeros, down_zeros]
    made = helper.make_node("QMoE", inputs, node.output, f"{node.name}_Q{bits}", domain=MICROSOFT)
    made.attribute.extend(node.attribute)
    level = {"accuracy_level": accuracy_level(config)} if accuracy_level(config) else {}  # 0 is the default
    # raw numbers: CUDA takes them in a layout of its own unless told
    more = {"expert_weight_bits": bits, "block_size": size, "weights_prepacked": 0, **level}
    made.attribute.extend(helper.make_attribute(name, value) for name, value in more.items())
    nodes = [made]
    if padding:
        made.input[0], made.output[0] = f"{node.name}.wide_in", f"{node.name}.wide_out"
        for name, array in (("pads", [0, 0, 0, padding]), ("start", [0]), ("end", [width]), ("axis", [1])):
            name = f"{node.name}.{name}"
            kept[name] = numpy_helper.from_array(np.array(array, np.int64), name)
        ends = [f"{node.name}.{name}" for name in ("start", "end", "axis")]
        nodes = [
            helper.make_node("Pad", [x, f"{node.name}.pads"], [made.input[0]], made.input[0]),
            made,
            helper.make_node("Slice", [made.output[0], *ends], node.output, made.output[0]),
        ]
    replace_node(model, node, nodes, kept)


class _All(Row):
    """Builder of the nodes that make the whole of a table real, for a product with it."""

    def looked_up(self, name: str, axis: int = 0) -> str:
        self.kept[name] = refer(name, self.weights[name])
        return name

    def finish(self, x: str) -> None:
        product = onnx.NodeProto()
        product.CopyFrom(self.node)
        product.input[0] = x
        replace_node(self.model, self.node, [*self.nodes, product], self.kept)
