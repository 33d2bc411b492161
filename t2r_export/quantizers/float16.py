"""fp16: weights and activations in half precision; all that touches a state stays float32.

ONNX Runtime's converter does the work. It is told which nodes to leave: everything between the projections that feed a
mixer and the one behind it, so that S, z, the division and the guard's eps are float32, the rotation of q and k too;
and the norms' squares, which overflow where a model has large activations. The converter puts a pair of casts between
any two nodes that it leaves, and one at every graph input: through half precision and back. Those pairs are taken out
again, or a state would be half precision after all.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from t2r_export.graph.nodes import name_dims, set_nodes
from t2r_export.quantizers.base import initializers, replace_initializers
from t2r_runtime.contract.signature import INPUT_IDS, PAST, POSITION, SOURCE, SOURCE_IDS, SOURCE_LENGTHS


def float16(model: onnx.ModelProto, *_: object) -> onnx.ModelProto:
    """`model` with half precision weights; inputs and outputs keep their dtypes."""
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
    del model.graph.value_info[:]  # of tensors that are gone, or of another dtype now
    ordered = ONNXModel(model)
    ordered.topological_sort()  # the converter appends its casts at the end
    typed = onnx.shape_inference.infer_shapes(ordered.model)
    name_dims(typed.graph.value_info, shapes)
    return typed


def float32_nodes(model: onnx.ModelProto) -> set[str]:
    """Names of the nodes that stay float32."""
    producers = {name: node for node in model.graph.node for name in node.output}
    kept = set(_after_states(model))
    kept |= {node.name for node in model.graph.node if any(name.startswith(SOURCE) for name in node.output)}
    waiting = [node for node in model.graph.node if node.name in kept]
    while waiting:  # what a kept node reads, back to the projection that made it
        for name in waiting.pop().input:
            node = producers.get(name)
            if node is not None and node.name not in kept and not _ends(node):
                kept.add(node.name)
                waiting.append(node)
    return kept | set(_norms(model))


def _ends(node: onnx.NodeProto) -> bool:
    """Whether the walk from a state ends here: at a projection, or at a table of tokens or of positions."""
    return (
        node.op_type == "Gemm" or node.op_type == "Gather" and node.input[1] in (INPUT_IDS, SOURCE_IDS, PAST + POSITION)
    )


def _after_states(model: onnx.ModelProto) -> Iterator[str]:
    """Nodes that compute with a state, up to the next projection."""
    ids = (SOURCE_IDS, SOURCE_LENGTHS)
    states = {i.name for i in model.graph.input if i.name.startswith((PAST, SOURCE)) and i.name not in ids}
    for node in model.graph.node:  # in topological order
        if states.intersection(node.input) and not _ends(node):
            states.update(node.output)
            yield node.name


def _norms(model: onnx.ModelProto) -> Iterator[str]:
    """Nodes from each square to the division by its root."""
    inside: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Pow" or inside.intersection(node.input):
            yield node.name
            if node.op_type != "Div":
                inside.update(node.output)


def _own_constants(model: onnx.ModelProto, wide: set[str]) -> None:
    """Give the float32 nodes a copy of each constant that others use too: it would be rounded for both."""
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
    """Let float32 → float16 → float32 be nothing; drop casts that nobody reads then, and those made several times."""
    casts = {node.output[0]: node for node in model.graph.node if node.op_type == "Cast"}
    same = {}  # a tensor after the round trip → the one before it
    for name, node in casts.items():
        half = casts.get(node.input[0])
        if half is not None and (_to(half), _to(node)) == (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT):
            same[name] = half.input[0]
    outputs = {output.name for output in model.graph.output}
    final = {same[name]: name for name in outputs if name in same}  # a graph's output keeps its name
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
