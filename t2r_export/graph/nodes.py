"""Views and edits of a graph that several stages share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto, helper


def initializers(model: onnx.ModelProto) -> dict[str, TensorProto]:
    """The initializers by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def producers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """The node that computes each tensor, by the tensor's name."""
    return {name: node for node in model.graph.node for name in node.output}


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The subset of `nodes` (in topological order) needed to compute the named tensors."""
    names, kept = set(outputs), []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(node.input)
            kept.append(node)
    return kept[::-1]


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Replace all nodes of the graph."""
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)


def renamed(nodes: Sequence[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Copies of nodes with tensors renamed by `names`; nodes in subgraphs are unchanged."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field in (copy.input, copy.output):
            field[:] = [names.get(name, name) for name in field]
        copies.append(copy)
    return copies


def made_of(step: onnx.ModelProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    """Build and check a model from a graph that was made of parts of a step graph."""
    made = helper.make_model(graph, opset_imports=step.opset_import, ir_version=step.ir_version)
    made.producer_name, made.producer_version = step.producer_name, step.producer_version
    check(made)
    return made


def check(model: onnx.ModelProto) -> None:
    """Run ONNX's checker, with absent weights declared as inputs (see t2r_export.graph.recording)."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    there = checked.graph.initializer
    for i in reversed(range(len(there))):
        if there[i].data_location == TensorProto.EXTERNAL:  # referenced by name, or stored in a file
            checked.graph.input.append(helper.make_tensor_value_info(there[i].name, there[i].data_type, there[i].dims))
            del there[i]
    onnx.checker.check_model(checked, full_check=True)


def name_dims(values: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Give equal symbolic names to dimensions that ONNX's shape inference left unknown.

    ONNX Runtime's memory planner reuses buffers of equal shape. Without equal names it finds none, and its search takes
    most of the time of opening the graph.
    """
    for value in values:
        for inferred, dim in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if inferred.HasField("dim_value"):
                continue
            if isinstance(dim, int):
                inferred.dim_value = dim
            else:
                inferred.dim_param = dim
