"""The release of ONNX Runtime that a graph names."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import small
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.describe import describe
from t2r_export.graph.reader import metadata
from t2r_export.graph.releases import ONNXRUNTIME, first_release
from t2r_export.quantize import quantize
from t2r_runtime.errors import UserError
from t2r_runtime.session.refusals import not_opened


def model(*nodes: onnx.NodeProto, opset: int = 21) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(kind: str, domain: str = "com.microsoft", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, ["x"], ["y"], domain=domain, **attributes)


@pytest.mark.parametrize(
    "graph, release",
    [
        (model(node("Add", "")), "1.18"),
        (model(node("LinearAttention", "")), "1.18"),  # of the default domain: its opset decides
        (model(node("Add", ""), opset=27), "1.32"),
        (model(node("LinearAttention")), "1.25.1"),
        (model(node("MatMulNBits", bits=4)), "1.18"),
        (model(node("MatMulNBits", bits=8)), "1.23"),
        (model(node("GatherBlockQuantized", bits=4), node("MatMulNBits", bits=4)), "1.20"),
        (model(node("Loop", "", body=model(node("LinearAttention")).graph)), "1.25.1"),
    ],
)
def test_the_latest_of_what_a_graph_uses(graph: onnx.ModelProto, release: str) -> None:
    assert first_release(graph) == release


def test_metadata_lists_required_opset(tmp_path: Path) -> None:
    plain, fused, rounded = (tmp_path / f"{name}.onnx" for name in ("plain", "fused", "w8"))
    small.graph(plain, "rotary_keep")
    small.graph(fused, "rotary_keep", target="fused", prefill=True)
    quantize(plain, rounded, QuantizeConfig(scheme="w8"))
    quantize(fused, tmp_path / "both.onnx", QuantizeConfig(scheme="w4"))
    assert ONNXRUNTIME not in metadata(onnx.load(plain))
    for path, release in ((fused, "1.25.1"), (rounded, "1.23"), (tmp_path / "both.onnx", "1.25.1")):
        assert json.loads(metadata(onnx.load(path))[ONNXRUNTIME]) == release
        assert describe(path).details["onnxruntime"] == f"{release} or later"
    (companion,) = tmp_path.glob("fused.onnx.*.onnx")
    assert ONNXRUNTIME not in metadata(onnx.load(companion))  # it prefills by ordinary operators


def test_an_older_release_is_told_apart() -> None:
    said = "Fatal error: com.microsoft:LinearAttention(-1) is not a registered function/op"
    error = not_opened(Path("g.onnx"), "ONNX Runtime 1.24.4", RuntimeError(said))
    assert isinstance(error, UserError)
    assert error.kind == "version"
    assert "the operator com.microsoft:LinearAttention; use a newer ONNX Runtime" in str(error)
