"""The .ort equals the model; files beside it list the operators that it needs and the accelerators that take it."""

from __future__ import annotations

from pathlib import Path

import pytest

import small
from t2r_export.config.export import ExportConfig
from t2r_export.describe import describe
from t2r_export.export import export
from t2r_export.graph import ort as ort_format
from t2r_export.graph.ort import to_ort
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.files import temporary_beside

NAMES = ["g.mobile.txt", "g.ort", "g.required_operators.config"]


def contents(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize(
    "target, name, options",
    [
        ("portable", "learned", {}),
        ("portable", "softmax", {"batch": 3}),
        ("fused", "hybrid", {"state_layout": "packed"}),
        ("standard", "rotary_drop", {}),  # also without the variable that an .onnx of opset 27 needs
        ("npu", "rotary_keep", {}),
    ],
)
def test_the_model(target: str, name: str, options: dict[str, object], tmp_path: Path) -> None:
    made, report = small.graph(tmp_path / "g.ort", name, target=target, **options)
    assert [file.name for file in report.files] == [NAMES[1], NAMES[2], NAMES[0]]
    assert contents(tmp_path) == NAMES
    assert Decoder(tmp_path / "g.ort", threads=1).signature == report.signature
    outcome = small.proof(made, tmp_path / "g.ort", steps=100)
    assert outcome.passed, outcome


@pytest.mark.slow
def test_what_stands_beside_it(tmp_path: Path) -> None:
    """All descriptions of one conversion; weights beyond the protobuf limit are read from beside the graph."""
    made = small.checkpoint("rotary_drop")
    onnx = export(made, tmp_path / "g.onnx", ExportConfig(target="npu"))
    export(made, tmp_path / "g.ort", ExportConfig(target="npu"), external_bytes=1)
    assert contents(tmp_path) == sorted([*NAMES, "g.onnx"])
    operators = (tmp_path / NAMES[2]).read_text()
    assert "MatMul" in operators
    assert "Slice" in operators, "the operators that accelerators take were merged for the CPU"
    assert "Gemm{" in operators, "no types"
    mobile = (tmp_path / NAMES[0]).read_text()
    assert "nothing was executed" in mobile
    nodes = onnx.nodes
    assert f"1 partitions with a total of {nodes - 1}/{nodes} nodes can be handled by the CoreML MLProgram" in mobile
    assert f"1 partitions with a total of {nodes}/{nodes} nodes can be handled by the NNAPI" in mobile
    assert str(tmp_path) not in operators + mobile
    ort, graph = describe(tmp_path / "g.ort"), describe(tmp_path / "g.onnx")
    assert ort.to_dict()["states"] == graph.to_dict()["states"]
    assert (ort.kind, ort.layers) == ("graph", graph.layers)
    assert ort.details["metadata"] == graph.details["metadata"]
    assert ort.details["operators"]["Gemm"] == graph.details["operators"]["Gemm"]
    assert abs(ort.parameters - graph.parameters) < 100  # equal except for small constants


def test_a_damaged_ort(tmp_path: Path) -> None:
    (tmp_path / "g.ort").write_bytes(b"\xff" * 100)
    for read in (describe, Decoder):
        with pytest.raises(UserError, match="expected an ONNX graph that ONNX Runtime accepts"):
            read(tmp_path / "g.ort")


def test_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(small.checkpoint(), tmp_path / "g.onnx", external_bytes=1)
    (tmp_path / "g.onnx.bak").write_bytes(b"0" * 100_000)  # not its weights
    monkeypatch.setattr(ort_format, "MAX_BYTES", 9_999)
    size = sum(file.stat().st_size for file in tmp_path.iterdir()) - 100_000
    with pytest.raises(UserError) as caught:
        to_ort(tmp_path / "g.onnx", tmp_path / "g.ort")
    assert str(caught.value) == (
        f"expected a graph of at most 9,999 bytes for an .ort file; received {size:,}; write an .onnx"
    )
    assert not (tmp_path / "g.ort").exists()


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught, temporary_beside(tmp_path / "none" / "g.ort", folder=True):
        pass
    assert str(caught.value) == (
        f"expected to be able to write {tmp_path}/none/g.ort; received No such file or directory; "
        "choose another place, or make room there"
    )


def test_a_tool_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(b"not a graph")
    with pytest.raises(RuntimeError, match="convert_onnx_models_to_ort failed"):
        to_ort(tmp_path / "g.onnx", tmp_path / "g.ort")
    assert contents(tmp_path) == ["g.onnx"]
