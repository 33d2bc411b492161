"""Block-wise quantization of experts, in every integer scheme: QMoE for MoE, else GatherBlockQuantized of the experts.

Without MoE, a step reads the chosen experts, and many tokens read all. Both operators round and store a weight as
MatMulNBits does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import initializers
from t2r_export.graph.weights import OF_ADAPTERS, Weight, refer, values
from t2r_export.quantizers.base import replace_node
from t2r_export.quantizers.blocks import BLOCK_SIZE, MICROSOFT, accuracy_level, import_microsoft, in_blocks, parts_of

UP, DOWN = 2, 4  # inputs of MoE


def expert_nodes(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, list[str]]]:
    """Nodes that read float32 expert weights (E, out, in), and the names of these weights. Nodes are MoE, a Gather of
    some experts, or a MatMul with all of them."""
    kept = initializers(model)
    for node in model.graph.node:
        names = [node.input[i] for i in {"MoE": (UP, DOWN), "Gather": (0,), "MatMul": (0,)}.get(node.op_type, ())]
        if names and all(name in kept and _is_of_experts(kept[name]) for name in names):
            yield node, names


def _is_of_experts(weight: onnx.TensorProto) -> bool:
    own = not weight.name.startswith(OF_ADAPTERS)
    return own and len(weight.dims) == 3 and weight.data_type == TensorProto.FLOAT


def quantize_experts(model: onnx.ModelProto, config: QuantizeConfig, weights: dict[str, Weight]) -> None:
    """Quantize the experts of `model`.

    Args:
        weights: as in t2r_export.quantizers.blocks.blocks.
    """
    for node, names in list(expert_nodes(model)):
        import_microsoft(model)
        if node.op_type == "MoE":
            _qmoe(model, node, config, weights)
        else:
            _made_real(model, node, names[0], config, weights)


def _stored(
    matrices: TensorProto, config: QuantizeConfig, weights: dict[str, Weight], least: int = 0
) -> tuple[list[str], dict[str, TensorProto]]:
    """Round weights (E, out, in), or reuse those of an earlier graph; returns their names and initializers.

    Values (E, out, bytes) uint8 of whole blocks, scales (E, out, blocks) float32 and, if asymmetric, zero points
    (E, out, bytes) uint8; the axis `out` is zero-padded to at least `least`.
    """
    bits, size = config.bits, config.block_size or BLOCK_SIZE
    parts = parts_of(matrices.name, bits, config)
    if not weights.keys() >= set(parts):
        count, rows, columns = matrices.dims
        arrays = in_blocks(values(matrices, weights).reshape(-1, columns).T, bits, size, config.asymmetric)
        whole = ((0, 0), (0, max(0, least - rows)), (0, 0))
        weights |= {
            part: np.pad(array.reshape(count, rows, -1), whole) for part, array in zip(parts, arrays, strict=True)
        }
    return parts, {part: refer(part, weights[part]) for part in parts}


def _made_real(
    model: onnx.ModelProto, node: onnx.NodeProto, name: str, config: QuantizeConfig, weights: dict[str, Weight]
) -> None:
    """Replace the Gather of some experts by GatherBlockQuantized, or dequantize all experts before the MatMul."""
    kept, size, bits = initializers(model), config.block_size or BLOCK_SIZE, config.bits
    count, _, width = kept[name].dims
    parts, made = _stored(kept[name], config, weights)
    kept |= made
    product, (chosen, real) = [], (node.input[1], node.output[0])
    if node.op_type == "MatMul":
        product, (chosen, real) = [onnx.NodeProto()], (f"{name}.all", f"{node.name}.experts")
        kept[chosen] = numpy_helper.from_array(np.arange(count), chosen)
        product[0].CopyFrom(node)
        product[0].input[0] = real
    inputs = [parts[0], chosen, *parts[1:]]
    read = helper.make_node("GatherBlockQuantized", inputs, [real], f"{node.name}_Q{bits}", domain=MICROSOFT)
    how = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 2}
    read.attribute.extend(helper.make_attribute(key, value) for key, value in how.items())
    nodes = [read]
    if width % size:
        read.output[0] = f"{node.name}.wide"
        nodes.append(_cut(read.output[0], real, -1, width, kept))
    replace_node(model, node, [*nodes, *product], kept)


def _cut(x: str, y: str, axis: int, length: int, kept: dict[str, TensorProto]) -> onnx.NodeProto:
    """The first `length` elements along an axis of x."""
    ends = {f"{x}.{name}": at for name, at in (("start", 0), ("end", length), ("axis", axis))}
    kept |= {name: numpy_helper.from_array(np.array([at], np.int64), name) for name, at in ends.items()}
    return helper.make_node("Slice", [x, *ends], [y], f"{x}.cut")


def _qmoe(model: onnx.ModelProto, node: onnx.NodeProto, config: QuantizeConfig, weights: dict[str, Weight]) -> None:
    """Replace MoE by QMoE, which supports whole blocks only: other widths are padded with zeros."""
    kept, size, bits = initializers(model), config.block_size or BLOCK_SIZE, config.bits
    x, scores, up, _, down = node.input
    _, width, hidden = kept[down].dims
    halves, padding = kept[up].dims[1] // hidden, -width % size
    found = []
    for name, least in ((up, halves * (hidden + -hidden % size)), (down, width + padding)):
        parts, made_of = _stored(kept[name], config, weights, least)
        kept |= made_of
        found.append([*parts, ""][:3])
    (up, up_scales, up_zeros), (down, down_scales, down_zeros) = found
    inputs = [x, scores, up, up_scales, "", down, down_scales, "", "", "", "", up_zeros, down_zeros]
    made = helper.make_node("QMoE", inputs, node.output, f"{node.name}_Q{bits}", domain=MICROSOFT)
    made.attribute.extend(node.attribute)
    level = {"accuracy_level": accuracy_level(config)} if accuracy_level(config) else {}  # 0 is the default
    # weights are not prepacked: CUDA otherwise expects its own layout
    more = {"expert_weight_bits": bits, "block_size": size, "weights_prepacked": 0, **level}
    made.attribute.extend(helper.make_attribute(name, value) for name, value in more.items())
    nodes = [made]
    if padding:
        made.input[0], made.output[0] = f"{node.name}.wide_in", f"{node.name}.wide_out"
        pads = f"{node.name}.pads"
        kept[pads] = numpy_helper.from_array(np.array([0, 0, 0, padding], np.int64), pads)
        wide = helper.make_node("Pad", [x, pads], [made.input[0]], made.input[0])
        nodes = [wide, made, _cut(made.output[0], node.output[0], 1, width, kept)]
    replace_node(model, node, nodes, kept)
