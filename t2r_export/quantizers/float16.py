"""fp16: weights and activations in half precision; states and their arithmetic stay float32.

Uses ONNX Runtime's converter with a list of excluded nodes: everything between the input and output projections of a
mixer (S, z, the guarded division, rotations of q and k), and the squares of norms, which may overflow. The converter
puts casts to half precision and back between excluded nodes and at graph inputs; these pairs are removed, because they
would round the states.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from t2r_export.graph.nodes import initializers, name_dims, producers, set_nodes
from t2r_export.quantizers.base import replace_initializers
from t2r_runtime.contract.signature import INPUT_IDS, SOURCE_IDS, SOURCE_LENGTHS
from t2r_runtime.contract.state_spec import PAST, POSITION, SOURCE


def float16(model: onnx.ModelProto, *_: object) -> onnx.ModelProto:
    """Convert `model` to half precision; inputs and outputs keep their dtypes."""
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    wide = float32_nodes(model)
    _own_constants(model, wide)
    model = convert_float_to_float16(model, keep_io_types=True, op_block_list=[], node_block_list=sorted(wide))
    _drop_round_trips(model)
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.value_info
    }
    del model.graph.value_info[:]  # outdated
    ordered = ONNXModel(model)
    ordered.topological_sort()  # the converter appends its casts at the end
    typed = onnx.shape_inference.infer_shapes(ordered.model)
    name_dims(typed.graph.value_info, shapes)
    return typed


def float32_nodes(model: onnx.ModelProto) -> set[str]:
    """Names of the nodes that stay float32."""
    made_by = producers(model)
    kept = set(_after_states(model))
    kept |= {node.name for node in model.graph.node if any(name.startswith(SOURCE) for name in node.output)}
    waiting = [node for node in model.graph.node if node.name in kept]
    while waiting:  # walk from kept nodes back to projections
        for name in waiting.pop().input:
            node = made_by.get(name)
            if node is not None and node.name not in kept and not _ends(node):
                kept.add(node.name)
                waiting.append(node)
    return kept | set(_norms(model))


def _ends(node: onnx.NodeProto) -> bool:
    """Whether a walk from states ends at this node: a projection, or a look-up of tokens or positions."""
    return (
        node.op_type == "Gemm" or node.op_type == "Gather" and node.input[1] in (INPUT_IDS, SOURCE_IDS, PAST + POSITION)
    )


def _after_states(model: onnx.ModelProto) -> Iterator[str]:
    """Nodes that compute with states, up to the next projection."""
    ids = (SOURCE_IDS, SOURCE_LENGTHS)
    states = {i.name for i in model.graph.input if i.name.startswith((PAST, SOURCE)) and i.name not in ids}
    for node in model.graph.node:  # in topological order
        if states.intersection(node.input) and not _ends(node):
            states.update(node.output)
            yield node.name


def _norms(model: onnx.ModelProto) -> Iterator[str]:
    """Nodes of norms, from each square to the division by its root."""
    inside: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Pow" or inside.intersection(node.input):
            yield node.name
            if node.op_type != "Div":
                inside.update(node.output)


def _own_constants(model: onnx.ModelProto, wide: set[str]) -> None:
    """Copy constants shared by float32 and converted nodes; otherwise they would be rounded for both."""
    others = {name for node in model.graph.node if node.name not in wide for name in node.input}
    weights = initializers(model)
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if node.name in wide and name in others and name in weights:
                own = f"{name}.float32"
                weights[own] = onnx.TensorProto()
                weights[own].CopyFrom(weights[name])
                weights[own].name = own
                node.input[i] = own
    replace_initializers(model, weights)


def _drop_round_trips(model: onnx.ModelProto) -> None:
    """Remove casts float32 → float16 → float32, unused casts and duplicates."""
    casts = {node.output[0]: node for node in model.graph.node if node.op_type == "Cast"}
    same = {}  # tensor after the round trip → tensor before it
    for name, node in casts.items():
        half = casts.get(node.input[0])
        if half is not None and (_to(half), _to(node)) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT):
            same[name] = half.input[0]
    outputs = {output.name for output in model.graph.output}
    final = {same[name]: name for name in outputs if name in same}  # graph outputs keep their names
    kept = [node for node in model.graph.node if node.output[0] not in same]
    for node in kept:
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                name = same.get(name, name)
                field[i] = final.get(name, name)
    used = outputs.union(*(node.input for node in kept))
    once = {node.output[0]: node for node in kept if node.op_type != "Cast" or node.output[0] in used}
    set_nodes(model.graph, once.values())


def _to(cast: onnx.NodeProto) -> int:
    return int(next(a.i for a in cast.attribute if a.name == "to"))
