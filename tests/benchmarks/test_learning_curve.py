"""Rows of a translator's learning curve."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

import learning_curve
import small
import texts
from t2r_export.checkpoints import checkpoint
from t2r_export.data.pairs import read_pairs, write_pairs
from t2r_export.quality.evaluate_pairs import evaluate_pairs

PAIRS = [("ab", "ba"), ("abc", "cba"), ("h", "h"), ("a b", "b a")]
LOG = [{"event": "start"}, {"step": 0, "validation_loss": 2.0}]
SPEEDS = [(10, 100.0), (20, 300.0), (30, 50.0)]
LOG += [{"step": step, "loss": 1.0, "tokens_per_second": speed} for step, speed in SPEEDS]


def test_hours_from_tokens_and_speed(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    log = learning_curve.speeds(tmp_path / "log.jsonl")
    assert log == SPEEDS
    # 1,000 tokens at 100 and 1,000 at 300 a second
    assert math.isclose(learning_curve.hours(20, 2000, log), (10 + 10 / 3) / 3600)


def test_points_of_states_and_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts.write_translator(tmp_path / "start.pt", small.SOFTMAX, "softmax")
    loaded = checkpoint.load(tmp_path / "start.pt")
    changed = {name: 1.1 * weight for name, weight in loaded.model.state_dict().items()}
    torch.save({"weights": changed, "step": 20, "tokens": 2000}, tmp_path / "a.training")
    ended = {"finetune": [{"stages": [{"steps": 30}], "tokens": 3000}]}
    checkpoint.save(tmp_path / "end.pt", loaded.model, loaded.tokenizer, ended)
    write_pairs(tmp_path / "test.tsv", PAIRS)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    files = [str(tmp_path / name) for name in ("start.pt", "log.jsonl", "end.pt", "a.training")]
    kept = ["--save", str(tmp_path / "kept.json"), "--plot", str(tmp_path / "curve.svg")]
    monkeypatch.setattr(sys, "argv", ["learning_curve.py", *files, "--pairs", str(tmp_path / "test.tsv"), *kept])
    learning_curve.main()
    rows = json.loads((tmp_path / "kept.json").read_text())["rows"]
    assert [row[0] for row in rows] == ["20", "30"]  # in the order of their steps
    loaded.model.load_state_dict(changed)
    checkpoint.save(tmp_path / "changed.pt", loaded.model, texts.tokenizer(), {})
    for row, model in zip(rows, ("changed.pt", "end.pt"), strict=True):
        text = evaluate_pairs(tmp_path / model, read_pairs(tmp_path / "test.tsv")).text
        assert text is not None and row[3] == f"{text.nats:.3f}"
    assert rows[0][3] != rows[1][3]
    assert "<svg" in (tmp_path / "curve.svg").read_text()
    assert "| 20 |" in capsys.readouterr().out
