"""Removal of nodes from a graph, and insertion."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

import small
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import name_dims, needed, set_nodes
from t2r_export.quantize import quantize

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


def unknown(path: Path) -> list[str]:
    """The tensors of a graph with a dimension that ONNX named."""
    return [
        value.name
        for value in onnx.load(path, load_external_data=False).graph.value_info
        if any(dim.dim_param.startswith("unk") for dim in value.type.tensor_type.shape.dim)
    ]


@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize("name", ["gated_rotary", "hybrid_gated", "window_rotary", "delta_rotary", "memory_softmax"])
def test_symbolic_dimension_names(name: str, target: str, tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", name, target=target, prefill=True, draft_check=True)
    graphs = [path for path in report.files if path.suffix == ".onnx"]
    assert len(graphs) == 3 and not any(map(unknown, graphs))
    quantize(tmp_path / "g.onnx", tmp_path / "half.onnx", QuantizeConfig(scheme="fp16"))
    assert not unknown(tmp_path / "half.onnx")


def test_dimensions_are_named() -> None:
    values = [helper.make_tensor_value_info(name, 1, dims) for name, dims in (("a", ["unk__0", 3, "B"]), ("b", ["x"]))]
    name_dims(values, {"a": (5, 3, "B*T")})
    told = [[dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in values]
    assert told == [[5, 3, "B*T"], ["x"]]
