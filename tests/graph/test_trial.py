"""A written graph runs once before it replaces a file; a graph that does not run replaces none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import small
from t2r_export.config.export import ExportConfig
from t2r_export.errors import CheckFailed
from t2r_export.export import build, export
from t2r_export.graph import targets
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import write
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import DRAFT_CHECK, PREFILL, STEP


def bundle(name: str = "learned") -> Bundle:
    return build(small.checkpoint(name), ExportConfig(prefill=True, draft_check=True))[0]


def unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node[-1].op_type = "Nonsense"


def wrong_shape(model: onnx.ModelProto) -> None:
    """A fault that only the first run shows."""
    product = next(node for node in model.graph.node if node.op_type in ("MatMul", "Gemm"))
    other = next(node for node in model.graph.node if node.op_type == "Gather")
    product.input[0] = other.input[0]


@pytest.mark.parametrize(
    "role, fault",
    [*((role, unknown_operator) for role in (STEP, PREFILL, DRAFT_CHECK)), (STEP, wrong_shape), (PREFILL, wrong_shape)],
)
def test_what_does_not_run_is_not_kept(role: str, fault: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "g.onnx"
    made = bundle()
    files, _ = write(made, out)
    content = {file: file.read_bytes() for file in files}
    graph = made.step if role == STEP else made.companions[role]
    fault(graph)
    with pytest.raises(CheckFailed, match="the graph that was made does not run, and was not kept: "):
        write(made, out)
    assert {file: file.read_bytes() for file in out.parent.iterdir()} == content


def test_an_interface_that_is_not_the_metadatas(tmp_path: Path) -> None:
    made = bundle()
    made = dataclasses.replace(made, companions={}, signature=dataclasses.replace(made.signature, vocab_size=7))
    with pytest.raises(CheckFailed, match="the inputs and outputs that the graph's metadata lists"):
        write(made, tmp_path / "g.onnx")
    assert not list(tmp_path.glob("g.onnx*"))


@pytest.mark.parametrize("normalizer", ["rms_norm", "group_norm"])
def test_a_sum_of_heads_before_a_norm(normalizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of fused norms take no four axes, so that such a sum is not fused."""
    config = small.MODELS["learned"]
    layers = tuple(dataclasses.replace(layer, normalizer=normalizer, memory=3) for layer in config.layers)
    loaded = small.checkpoint(dataclasses.replace(config, layers=layers))
    export(loaded, tmp_path / "g.onnx", ExportConfig(target="fused"))
    Decoder(tmp_path / "g.onnx").step(1)
    monkeypatch.setattr(targets, "MAX_AXES", 4)
    with pytest.raises(CheckFailed, match="dimensions, got 4"):
        export(loaded, tmp_path / "g.onnx", ExportConfig(target="fused"))


def test_any_opset_restores_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "1"):
        if value is None:
            monkeypatch.delenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", raising=False)
        else:
            monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", value)
        export(small.checkpoint("learned"), tmp_path / "g.onnx", ExportConfig(target="standard"))
        assert os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY") == value
