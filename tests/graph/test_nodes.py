"""Nodes that are taken out of a graph, and put into it."""

from __future__ import annotations

import onnx
from onnx import helper

from t2r_export.graph.nodes import needed, set_nodes

NODES = [helper.make_node(op, [x], [y]) for op, x, y in (("Sin", "x", "a"), ("Cos", "x", "b"), ("Abs", "a", "c"))]


def test_what_an_output_needs() -> None:
    assert [[node.op_type for node in needed(NODES, names)] for names in (["c"], ["b"], ["x"], ["b", "a"])] == [
        ["Sin", "Abs"],
        ["Cos"],
        [],
        ["Sin", "Cos"],
    ]


def test_a_graph_of_some_of_its_nodes() -> None:
    graph = onnx.GraphProto(node=NODES)
    set_nodes(graph, (node for node in graph.node if node.op_type != "Cos"))
    assert [node.op_type for node in graph.node] == ["Sin", "Abs"]
