"""Error measures. test_verify tests the detection of faults."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.proof.side_by_side import SPREAD, Errors, SideBySide, logit_error, state_error
from t2r_export.quantize import quantize
from t2r_runtime import Decoder


def test_worse_errors_are_kept() -> None:
    one, other = Errors(logits=0.5, states=math.nan), Errors(logits=0.25, states=9.0)
    for worst in (one.or_worse(other), other.or_worse(one)):  # max() would lose a NaN in one of its arguments
        assert worst.logits == 0.5
        assert math.isnan(worst.states)


def test_state_error() -> None:
    expected = {"S": np.array([[4.0, -8.0]], np.float32), "position": np.array([3], np.int32)}
    assert state_error(expected, expected) == 0
    assert state_error(expected | {"S": np.array([[4.0, -7.0]], np.float32)}, expected) == 1 / 8
    assert state_error(expected | {"position": np.array([4], np.int32)}, expected) == 1 / 3
    assert np.isnan(state_error(expected | {"S": np.array([[np.nan, -8.0]], np.float32)}, expected))
    assert state_error({"S": np.zeros((1, 0))}, {"S": np.zeros((1, 0))}) == 0
    with pytest.raises(AssertionError, match="S"):
        state_error({"S": np.zeros((2, 1))}, {"S": np.zeros((1, 2))})


def test_logit_error() -> None:
    """Of quantized graphs without what all logits of a token share, and relative to a spread above SPREAD."""
    expected = np.random.default_rng(5).normal(3, 2, (2, 3, 901)).astype(np.float32)
    shift = np.array([[[90], [-8], [0]], [[1], [2], [-60]]], np.float32)
    one = np.zeros_like(expected)
    one[1, 0, 7] = 6
    assert logit_error(expected + shift, expected) == 90
    assert logit_error(expected + shift, expected, "w8") < 1e-4
    assert logit_error(expected + shift + one, expected, "w8") == pytest.approx(6, rel=0.01)
    large = 10 * expected
    wide = float(large[1, 0].std())
    assert logit_error(large + shift + one, large, "w8") == pytest.approx(6 * SPREAD / wide, rel=0.01)
    for wrong in (2 * large, large[..., ::-1]):  # a scale, and tokens that change places
        assert logit_error(wrong, large, "w8") > 2 * SPREAD
    assert np.isnan(logit_error(expected + np.nan * one, expected, "w8"))


@torch.inference_mode()
def test_texts_are_what_the_model_would_write(tmp_path: Path) -> None:
    """A random token, then likely ones; any if the logits are not numbers."""
    made = small.checkpoint("rotary_keep")
    made.model.norm.weight.data *= 100  # nearly greedy
    export(made, tmp_path / "g.onnx")
    both = SideBySide(made.model, Decoder(tmp_path / "g.onnx"), [], torch.Generator().manual_seed(3))
    ids = both.text(both.initial(40), 7)
    assert ids.shape == (40, 7) and len(ids[:, 0].unique()) > small.VOCABULARY // 2
    assert (made.model(ids).argmax(-1)[:, :-1] == ids[:, 1:]).float().mean() > 0.8
    assert both.drawn(torch.full((2, small.VOCABULARY), torch.nan)).amax() < small.VOCABULARY


def test_quantized_texts_begin_as_the_tokenizers(data: Path, tmp_path: Path) -> None:
    loaded = checkpoint.load(data / "checkpoints" / "stories260K")
    export(loaded, tmp_path / "float32.onnx")
    quantize(tmp_path / "float32.onnx", tmp_path / "w8.onnx", QuantizeConfig(scheme="w8"))
    firsts = []
    for name in ("float32", "w8"):
        decoder = Decoder(tmp_path / f"{name}.onnx")
        both = SideBySide(loaded.model, decoder, loaded.model.state_spec(), torch.Generator().manual_seed(0))
        firsts.append(set(both.first_ids(5).tolist()))
    assert len(firsts[0]) > 1
    assert firsts[1] == {1}
