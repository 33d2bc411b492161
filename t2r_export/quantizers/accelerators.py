"""Rewrite quantized nodes for accelerators (target `npu`).

As of onnxruntime-qnn 2.7.0, MatMulNBits needs an input of rank 3, and an integer table is only supported as a Gather of
floats between DequantizeLinear and QuantizeLinear.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import set_nodes
from t2r_export.quantizers.tables import has_table, table_of


def for_accelerators(model: onnx.ModelProto, config: QuantizeConfig) -> None:
    """Rewrite the graph of a block-wise scheme."""
    to_rank3(model)
    if config.embedding_bits != 4 and has_table(model):
        table_between_quantizers(model)


def to_rank3(model: onnx.ModelProto) -> None:
    """Put every MatMulNBits between Reshapes to (1, B, ·) and back."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type != "MatMulNBits":
            continue
        sizes = {a.name: a.i for a in node.attribute}
        x, y = node.input[0], node.output[0]
        node.input[0], node.output[0] = f"{node.name}.wide_in", f"{node.name}.wide_out"
        nodes.insert(-1, _reshape(model, x, node.input[0], (1, -1, sizes["K"])))
        nodes.append(_reshape(model, node.output[0], y, (-1, sizes["N"])))
    set_nodes(model.graph, nodes)


def table_between_quantizers(model: onnx.ModelProto) -> None:
    """Replace Gather, DequantizeLinear by DequantizeLinear, Gather, QuantizeLinear, DequantizeLinear; exact."""
    gather = table_of(model)
    row = gather.output[0]
    (after,) = [node for node in model.graph.node if row in node.input]
    table, numbers = gather.input[0], list(after.input[1:])
    gather.input[0], gather.output[0] = f"{table}.real", f"{row}.real"
    before = helper.make_node("DequantizeLinear", [table, *numbers], [gather.input[0]], name=f"{gather.name}.before")
    behind = helper.make_node("QuantizeLinear", [gather.output[0], *numbers], [row], name=f"{gather.name}.behind")
    nodes = list(model.graph.node)
    place = nodes.index(gather)
    set_nodes(model.graph, [*nodes[:place], before, gather, behind, *nodes[place + 1 :]])


def _reshape(model: onnx.ModelProto, x: str, y: str, shape: tuple[int, ...]) -> onnx.NodeProto:
    name = f"{y}.shape"
    model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
    return helper.make_node("Reshape", [x, name], [y], name=f"{y}.reshape")
