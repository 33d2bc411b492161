"""Experts in blocks: on every target a graph equals the model whose experts are rounded in the same way."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import small
from small import GPT2, MOE
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.parts import MoEConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_export.graph.nodes import initializers
from t2r_export.graph.reader import metadata
from t2r_export.graph.releases import ONNXRUNTIME
from t2r_export.quantize import export_quantized
from t2r_export.quantizers.base import projections
from t2r_export.training.straight_through import attach, settled
from t2r_runtime import Decoder

READ = "GatherBlockQuantized"
FORMS = {
    "padded": MOE,  # no width is a whole number of blocks
    "of all": dataclasses.replace(MOE, renormalize=False, top=3),
    "top 1": MoEConfig(experts=5, size=3, top=1, renormalize=False, activation="relu", gated=False),
    "sigmoids": dataclasses.replace(MOE, router="sigmoid", choice_bias=True, scale=1.5, eps=0.25),
    "gelu": dataclasses.replace(MOE, activation="gelu"),  # ordinary operators on target fused too
}


def checkpoint(form: MoEConfig, **changes: Any) -> Checkpoint:
    config = small.with_layers(GPT2, small.LINEAR, feed_forwards=(form,), **changes)
    made, _ = fold(small.model(config))
    return Checkpoint(made.config, made, None, {}, "0" * 64)


def logits(path: Path, ids: np.ndarray) -> np.ndarray:
    """Logits after a prompt, and after each of its tokens."""
    decoder = Decoder(path, threads=1)
    decoder.reset(len(ids))
    prompt = decoder.prefill(ids)
    decoder.reset(len(ids))
    return np.stack([prompt, *(decoder.step(column) for column in ids.T)])


@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("scheme", ["w4", "w8"])
@pytest.mark.parametrize("name", FORMS)
def test_a_graph_is_the_rounded_model(name: str, scheme: str, asymmetric: bool, target: str, tmp_path: Path) -> None:
    made, ids = checkpoint(FORMS[name]), small.ids(length=5).numpy()
    how = QuantizeConfig(scheme=scheme, block_size=16, accuracy_level=0, asymmetric=asymmetric)
    options = ExportConfig(target=target, prefill=True)
    export_quantized(made, tmp_path / "q.onnx", options, how)
    attach(made.model, how)
    exact = settled(made.model)
    export(Checkpoint(exact.config, exact, None, {}, "0" * 64), tmp_path / "g.onnx", options)
    # experts of 8 bits read activations of 8 bits on target fused
    bound = 0.05 if (target, scheme) == ("fused", "w8") and name != "gelu" else 2e-5
    np.testing.assert_allclose(logits(tmp_path / "q.onnx", ids), logits(tmp_path / "g.onnx", ids), atol=bound)


@pytest.mark.parametrize("target, operator", [("portable", READ), ("fused", "QMoE"), ("npu", READ)])
@pytest.mark.parametrize("scheme, share", [("int8", 0.35), ("w8", 0.35), ("w4", 0.2)])
def test_experts_are_small_in_every_graph(
    scheme: str, share: float, target: str, operator: str, tmp_path: Path
) -> None:
    """Weights are stored only as integers, once for steps and prompts; routers are float32."""
    made = checkpoint(MoEConfig(experts=7, size=64, top=2), width=96)
    options = ExportConfig(target=target, prefill=target != "npu" and scheme != "int8")
    _, report = export_quantized(made, tmp_path / "q.onnx", options, QuantizeConfig(scheme=scheme))
    paths = [tmp_path / "q.onnx", *tmp_path.glob("*.prefill.onnx")]
    assert len(paths) == 1 + options.prefill
    for path in paths:
        graph = onnx.load(path)
        kept = initializers(graph)
        assert [t.data_type for name, t in kept.items() if "router" in name] == [onnx.TensorProto.FLOAT]
        assert not {"blocks.0.parts.1.up", "blocks.0.parts.1.down"} & kept.keys()
        reads = [node for node in graph.graph.node if any("parts.1.up_Q" in name for name in node.input)]
        assert [node.op_type for node in reads] == [operator]
    assert report.bytes_after < share * report.bytes_before
    assert sum(file.stat().st_size for file in report.files) < report.bytes_after + 80_000  # nodes and metadata


def test_a_graph_of_qmoe_names_its_release(tmp_path: Path) -> None:
    found = []
    for scheme in (None, "w4"):
        path, options = tmp_path / f"{scheme}.onnx", ExportConfig(target="fused", context="8")
        made = Checkpoint(
            *vars(small.checkpoint(small.with_layers(GPT2, small.SOFTMAX, feed_forwards=(MOE,)))).values()
        )
        if scheme is None:
            export(made, path, options)
        else:
            export_quantized(made, path, options, QuantizeConfig(scheme=scheme))
        found.append(json.loads(metadata(onnx.load(path))[ONNXRUNTIME]))
    assert found == ["1.23.2", "1.31"]


def test_routers_are_no_projections(tmp_path: Path) -> None:
    """A head whose largest logits are chosen is one."""
    for target in ("portable", "fused"):
        small.graph(tmp_path / "g.onnx", "moe", target=target, top_k=3)
        names = [node.name for node in projections(onnx.load(tmp_path / "g.onnx"))]
        assert not any("router" in name for name in names)
        assert "embedding_gemm" in names
