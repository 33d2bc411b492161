"""The bounds of quantized graphs are coarse, but a wrong graph of a trained model is beyond them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import faults
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.quantize import export_quantized
from t2r_export.verify import verify

MODEL = Path(__file__).parents[2] / "models" / "storyteller" / "model.pt"
STEPS = 9
SCALES = "blocks.{}.parts.0.qkv.weight.transposed_scales"
BLOCKS = "blocks.{}.parts.1.up.weight.transposed_Q8"
FAULTS = {
    "a product's scales are off by 2": faults.doubled("blocks.1.parts.0.qkv.product"),
    "two layers exchange scales": faults.swap_outputs(SCALES.format(0), SCALES.format(3)),
    "two layers exchange matrices": faults.swap_outputs(BLOCKS.format(1), BLOCKS.format(2)),
    "S is reset": faults.unread("S.2"),
    "S is not written": faults.unchanged("S.0"),
    "a product is off by 2, within all other bounds": faults.doubled("blocks.3.parts.0.o.out"),
}


@pytest.fixture(scope="module")
def loaded() -> Checkpoint:
    return checkpoint.load(MODEL)


@pytest.fixture(scope="module")
def graph(loaded: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("w8") / "w8.onnx"
    export_quantized(loaded, out, ExportConfig(), QuantizeConfig(scheme="w8"))
    return out


def test_right_graph_passes(loaded: Checkpoint, graph: Path) -> None:
    report = verify(loaded, graph, steps=STEPS)
    assert report.passed, report


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_graph_fails(fault: str, loaded: Checkpoint, graph: Path) -> None:
    wrong: Callable[[onnx.GraphProto], None] = FAULTS[fault]
    report = verify(loaded, faults.inject(graph, wrong), steps=STEPS)
    assert not report.passed, report
    assert [check.name for check in report.checks if not check.passed]
