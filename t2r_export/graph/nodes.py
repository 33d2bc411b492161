"""Changes to a graph that more than one stage makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto, helper


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Those of `nodes`, which are in topological order, that the tensors of these names are computed with."""
    names, kept = set(outputs), []
    for node in reversed(nodes):
        if names.intersection(node.output):
            names.update(node.input)
            kept.append(node)
    return kept[::-1]


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let these be all nodes of the graph."""
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)


def renamed(nodes: Sequence[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Copies of nodes whose tensors have other names where `names` says so; nodes inside of them stay as they are."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field in (copy.input, copy.output):
            field[:] = [names.get(name, name) for name in field]
        copies.append(copy)
    return copies


def made_of(step: onnx.ModelProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    """A checked model of a graph that was made of a step graph's parts."""
    made = helper.make_model(graph, opset_imports=step.opset_import, ir_version=step.ir_version)
    made.producer_name, made.producer_version = step.producer_name, step.producer_version
    check(made)
    return made


def check(model: onnx.ModelProto) -> None:
    """ONNX's own checker, to which weights that are not there are inputs, as in t2r_export.graph.recording."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    there = checked.graph.initializer
    for i in reversed(range(len(there))):
        if there[i].data_location == TensorProto.EXTERNAL:  # named, or in a file
            checked.graph.input.append(helper.make_tensor_value_info(there[i].name, there[i].data_type, there[i].dims))
            del there[i]
    onnx.checker.check_model(checked, full_check=True)


def name_dims(values: Iterable[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Say which dimensions are the same, where ONNX has inferred no more of each than that it is unknown.

    ONNX Runtime's plan of memory lets a result take the place of one of the same shape. Where no two are the same, it
    finds none, and to find that out for every one takes most of the time in which a graph is opened.
    """
    for value in values:
        for inferred, dim in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if inferred.HasField("dim_value"):
                continue
            if isinstance(dim, int):
                inferred.dim_value = dim
            else:
                inferred.dim_param = dim
