"""`t2r evaluate` gives the same result for a graph and its checkpoint, as does `t2r-run score`."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
import torch

from cli_models import CONFIG, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime.cli import score

TEXT = "once upon a time, there was a hen."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("score")
    torch.manual_seed(1)
    checkpoint.save(here / "m.pt", convert(Transformer(CONFIG.build()), LinearConfig(5)), letter_tokenizer(), {})
    export(checkpoint.load(here / "m.pt"), here / "g.onnx")
    (here / "text.txt").write_text(TEXT)
    return here


def test_score_matches_model(folder: Path, capsys: Output) -> None:
    result = json.loads(run(capsys, "evaluate", folder / "g.onnx", folder / "text.txt", "--json")[0])
    model, ids = checkpoint.load(folder / "m.pt").model, result["tokens"]
    with torch.no_grad():
        logits = model(torch.tensor([ids]))[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item()
    assert len(ids) == len(TEXT) == len(result["log_probabilities"]) + 1
    assert result["nats"] == pytest.approx(expected, rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(expected * (len(ids) - 1) / math.log(2) / len(TEXT), rel=1e-5)
    out, err = run(capsys, "evaluate", folder / "g.onnx", folder / "text.txt")
    assert out == (
        f"{result['nats']:.4f} nats/token, perplexity {math.exp(result['nats']):.2f}, "
        f"{result['bits_per_byte']:.4f} bits/byte, 33 tokens\n"
    )
    assert err == ""


def test_stdin(folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(capsys, "evaluate", folder / "g.onnx", folder / "text.txt")[0]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert run(capsys, "evaluate", folder / "g.onnx", "-")[0] == expected


@pytest.mark.parametrize(
    "text, message",
    [
        (b"", "a text of at least 2 tokens to score; received 1"),  # BOS
        (b"a", "a text of at least 2 tokens to score; received 1"),
        (b"ab\xff", "text in UTF-8 in"),
        (b"a" * 101, "a text of at most 100 bytes in"),
    ],
)
def test_non_text_arguments(
    text: bytes, message: str, folder: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "MAX_TEXT", 100)
    (tmp_path / "x.txt").write_bytes(text)
    out, err = run(capsys, "evaluate", folder / "g.onnx", tmp_path / "x.txt", code=2)
    assert out == "" and message in err and err.count("\n") == 1
