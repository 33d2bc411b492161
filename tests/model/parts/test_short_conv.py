"""Gated short convolutions, several in a layer: each part has its own states, even if names are equal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import small
from t2r_export.config.export import ExportConfig
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import AttentionConfig, DenseConfig, ShortConvConfig
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_runtime.errors import UserError

RMS = NormConfig("rms")


def crowded(parallel: bool) -> ModelConfig:
    """A layer with three parts, each with a state `conv` of another size, beside a softmax layer."""
    inside = LinearConfig(5, conv=2, normalizer="none", update_rule="gated", gate="data")
    parts = (
        ShortConvConfig(3, norm=RMS),
        DenseConfig(size=7, norm=RMS),
        ShortConvConfig(4, True, norm=RMS, multiplier=0.5),
        AttentionConfig(heads=6, kv_heads=3, head_size=4, inside=inside, norm=RMS),
    )
    base = small.built("none")
    first, *rest = parts
    layer = LayerConfig(parts=(first, *(dataclasses.replace(part, beside=parallel) for part in rest)))
    return dataclasses.replace(base, layers=(layer, *base.layers))


def test_states_of_one_name_are_numbered_by_part() -> None:
    made = small.model(crowded(False))
    names = [spec.name for spec in made.state_spec()]
    assert names == ["conv.0", "conv_2.0", "S_3.0", "conv_3.0", "S.1", "z.1", "S.2", "z.2"]
    assert [len(spec.shape) and spec.shape[2] for spec in made.state_spec()[:2]] == [2, 3]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_a_crowded_layer_is_the_model(parallel: bool, target: str, tmp_path: Path) -> None:
    loaded = small.checkpoint(crowded(parallel))
    export(loaded, tmp_path / "g.onnx", ExportConfig(target=target, prefill=True, draft_check=True))
    outcome = small.proof(loaded, tmp_path / "g.onnx", steps=40)
    assert outcome.passed, outcome


@torch.no_grad()
def test_folded_parts_keep_their_states() -> None:
    made, ids = small.model(crowded(True)).double(), small.ids()
    folded, report = fold(made)
    assert all(part.folded for part in report if part.kind == "linear")
    states = small.states(made)
    logits, after = made.prefill(ids, states)
    found, states = folded.prefill(ids, made.fold_states(states))
    torch.testing.assert_close(found, logits)
    small.assert_states(states, made.fold_states(after), 1e-9)


@pytest.mark.parametrize("taps", [1, 0, 65, True, 2.0])
def test_taps_are_bounded(taps: int) -> None:
    with pytest.raises(UserError, match="taps to be an integer from 2 to 64"):
        ShortConvConfig(taps)
