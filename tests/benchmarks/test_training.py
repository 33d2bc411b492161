"""Tests of benchmarks/training.py, with a small model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import training
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.positions import RotaryConfig

pytestmark = pytest.mark.slow


def test_forms_train_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = HeadsConfig(heads=2, kv_heads=1, head_size=8, qkv_bias=False, output_bias=False, positions=RotaryConfig())
    small = dataclasses.replace(
        training.SIZES["smollm-135m"], width=16, ffn_size=24, layers=(SoftmaxConfig(),), attention=heads
    )
    monkeypatch.setattr(training, "SIZES", {"smollm-135m": small})
    monkeypatch.setattr(training, "STEPS", 2)
    monkeypatch.setattr(training, "FORMS", {name: training.FORMS[name] for name in list(training.FORMS)[:2]})
    text = tmp_path / "text.txt"
    text.write_text("A hen walked down the road to the mill. " * 400, encoding="utf-8")
    made = training.table(1, tmp_path, text)
    assert [row[0] for row in made.rows] == list(training.FORMS)
    assert made.rows[0][2] == "1.00"
    assert abs(float(made.rows[0][-1]) - float(made.rows[1][-1])) < 1e-3
