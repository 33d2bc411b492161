"""Changes to a graph that more than one stage makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx


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
