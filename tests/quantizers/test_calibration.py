"""Calibration inputs: real states, finite logits, texts that are long enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import small
from quantized import config
from small import VOCABULARY
from t2r_export.graph.nodes import initializers
from t2r_export.quantize import quantize
from t2r_export.quantizers.base import Calibration
from t2r_export.quantizers.calibration import feeds
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError


def test_unreadable_graph_is_not_calibrated(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", target="standard")
    small.newer_opset(tmp_path / "g.onnx")
    with pytest.raises(UserError, match="expected an (opset|ONNX graph) that ONNX Runtime (reads|accepts)"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tokens))
    assert not (tmp_path / "q.onnx").exists()


def test_calibration_uses_real_states(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "sinusoidal")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 400)
    seen = list(feeds(Calibration(tmp_path / "g.onnx", tokens, 50)))
    assert len(seen) == 50
    decoder = Decoder(tmp_path / "g.onnx")
    decoder.reset(batch=4)
    rows = np.stack([feed["input_ids"] for feed in seen], 1)
    np.testing.assert_array_equal(rows[0], tokens[:50])
    np.testing.assert_array_equal(rows[-1], tokens[-50:])
    for feed in seen:
        for name, value in decoder.state().items():
            np.testing.assert_array_equal(feed[f"past_{name}"], value)
        decoder.step(feed["input_ids"])


def test_calibration_needs_finite_logits(tokens: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "sinusoidal")
    model = onnx.load(tmp_path / "g.onnx")
    bias = initializers(model)["norm.bias"]
    bias.raw_data = np.full(bias.dims, 3e38, np.float32).tobytes()
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(UserError, match="expected finite logits on the calibration text; received NaN or inf"):
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tokens))


def test_calibration_limited_by_positions(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "learned", batch=3)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 400)
    seen = list(feeds(Calibration(tmp_path / "g.onnx", tokens, 50)))
    assert len(seen) == small.POSITIONS
    assert seen[0]["input_ids"].shape == (3,)


def test_short_calibration_text_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    np.save(tmp_path / "few.npy", np.ones(1023, int))
    with pytest.raises(UserError) as caught:
        quantize(tmp_path / "g.onnx", tmp_path / "q.onnx", config("int8-static", tmp_path / "few.npy"))
    assert str(caught.value) == (
        f"expected a calibration text of at least 1024 tokens; received 1023 in {tmp_path / 'few.npy'}; "
        "name a longer one"
    )
