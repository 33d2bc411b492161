"""`t2r demo` on a small model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import small
from cli_models import CONFIG, Output, letter_tokenizer, run
from t2r_export import verify as module
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import demo
from t2r_export.config.mixers import LinearConfig
from t2r_export.convert import convert
from t2r_export.model.transformer import Transformer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    student = convert(Transformer(CONFIG.build()), LinearConfig(16))
    checkpoint.save(tmp_path / "model.pt", student, letter_tokenizer(), {})
    return tmp_path / "model.pt"


def test_exports_verifies_and_writes(model: Path, capsys: Output) -> None:
    out, err = run(capsys, "demo", model, "--prompt", "the cat")
    for expected in ("parameters", "layers 0-1: folded", "500 steps, cpu", "tokens/s"):
        assert expected in out
    assert "\n\nthe cat" in out
    assert err.count("\n") == 1
    result = json.loads(run(capsys, "demo", model, "--json")[0])
    assert result["parity"]["passed"] is True
    assert result["text"].startswith("Once upon a time")
    assert result["graph_bytes"] > 0 < result["model_bytes"]
    assert result["state_bytes"] > 0


def test_a_translator_translates(tmp_path: Path, capsys: Output) -> None:
    torch.manual_seed(1)
    base = dataclasses.replace(CONFIG, layers=(small.LINEAR, small.LINEAR), eos_tokens=(1,))
    made = Transformer(small.translator(small.LINEAR_CROSS, base=base, source_vocabulary=None).build())
    checkpoint.save(tmp_path / "model.pt", made, letter_tokenizer(), {})
    out, _ = run(capsys, "demo", tmp_path / "model.pt", "--prompt", "ab")
    assert "encoder graph against eager, states" in out and "\n\nab\n    " in out
    result = json.loads(run(capsys, "demo", tmp_path / "model.pt", "--json")[0])
    assert result["parity"]["passed"] is True
    lines = result["text"].splitlines()
    assert lines[::2] == list(demo.SENTENCES) and all(line.startswith("    ") for line in lines[1::2])


@pytest.mark.slow
def test_graph_differs_from_model(model: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    right, other = module.verify, convert(Transformer(CONFIG.build()), LinearConfig(16), seed=7)
    other = dataclasses.replace(checkpoint.load(model), model=other)
    monkeypatch.setattr(module, "verify", lambda loaded, *rest, **options: right(other, *rest, **options))
    out, err = run(capsys, "demo", model, "--json", code=1)
    assert out == ""
    assert err == "t2r: check failed: the exported graph differs from the model: run t2r verify for details\n"


def test_demo_of_unsupported_model(model: Path, tmp_path: Path, capsys: Output) -> None:
    _, err = run(capsys, "demo", tmp_path / "none.pt", "--json", code=2)
    assert err.startswith(f"t2r: expected a model at {tmp_path / 'none.pt'}; received nothing; ")
    checkpoint.save(tmp_path / "mute.pt", checkpoint.load(model).model, None, {})
    _, err = run(capsys, "demo", tmp_path / "mute.pt", "--json", code=2)
    assert err.startswith(f"t2r: expected a tokenizer in {tmp_path / 'mute.pt'}; received a model without one")
