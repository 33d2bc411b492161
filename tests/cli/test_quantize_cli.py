"""`t2r quantize` and `t2r export --quantize` from the outside."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import onnx
import pytest

import small
from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.quantize import SCHEMES
from t2r_export.quantizers import base
from t2r_runtime import Decoder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    linear = dataclasses.replace(CONFIG, layers=(small.LINEAR, small.LINEAR))
    checkpoint.save(tmp_path / "m.pt", small.model(linear), letter_tokenizer(), {})
    return tmp_path / "m.pt"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(random.Random(0).choices(LETTERS, k=1500)))
    return path


def test_quantize(model: Path, text: Path, tmp_path: Path, capsys: Output) -> None:
    run(capsys, "export", model, tmp_path / "g.onnx")
    out, _ = run(capsys, "quantize", tmp_path / "g.onnx", tmp_path / "q.onnx", "--scheme", "fp16", "--check", text)
    assert "fp16: weights " in out
    assert "nats/token, 1,280 tokens" in out
    assert "bound of nats/token +0.50%: ok" in out
    arguments = ["--scheme", "int8-static", "--calibrate", text, "--json"]
    out, _ = run(capsys, "quantize", tmp_path / "g.onnx", tmp_path / "s.onnx", *arguments)
    said = json.loads(out)
    assert said["files"] == {str(tmp_path / "s.onnx"): (tmp_path / "s.onnx").stat().st_size}
    assert said["scheme"] == "int8-static"


def test_export_quantized(model: Path, tmp_path: Path, capsys: Output) -> None:
    out, _ = run(capsys, "export", model, tmp_path / "q.onnx", "--quantize", "w4:block_size=16")
    assert "w4: weights " in out
    assert Decoder(tmp_path / "q.onnx").signature.quantization == "w4"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.pt", "q.onnx"]
    for mistake, known in (
        ("int8:block_size=16", "activation_error)"),
        ("int8-static:head_bits=4", "calibrate_steps, activ"),
    ):
        _, error = run(capsys, "export", model, tmp_path / "r.onnx", "--quantize", mistake, code=2)
        assert f"options of {mistake.partition(':')[0]} ({known}" in error
    _, error = run(capsys, "export", model, tmp_path / "r.onnx", "--calibrate", model, code=2)
    assert "expected --quantize with --calibrate; received none; add it, or leave --calibrate out" in error


def test_help_of_a_scheme(capsys: Output) -> None:
    for line in (["quantize", "--scheme"], ["export", "--quantize"], ["finetune", "--for"]):
        out, _ = run(capsys, *line, "w4:help")
        assert "  block_size=32 " in out and ("budget" in out) == (line[0] != "finetune")


def test_quality_check_failure_exit_1(
    model: Path, text: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lossy(graph: onnx.ModelProto, *_: object) -> onnx.ModelProto:
        bias = base.initializers(graph)["norm.weight"]
        bias.raw_data = b"\0" * len(bias.raw_data)
        return graph

    monkeypatch.setitem(SCHEMES, "w8", dataclasses.replace(SCHEMES["w8"], loss=-0.9))
    monkeypatch.setattr("t2r_export.quantizers.blocks.blocks", lossy)
    run(capsys, "export", model, tmp_path / "g.onnx")
    arguments = ["quantize", tmp_path / "g.onnx", tmp_path / "q.onnx", "--scheme", "w8", "--check", text]
    out, error = run(capsys, *arguments, code=1)
    assert "FAILED" in out
    assert "was not written" in error
    assert not (tmp_path / "q.onnx").exists()


def test_an_unknown_scheme_is_exit_2(model: Path, tmp_path: Path, capsys: Output) -> None:
    _, error = run(capsys, "export", model, tmp_path / "q.onnx", "--quantize", "w3", code=2)
    assert error == (
        "t2r: expected a scheme of fp16, int8, int8-static, w8, w4, keep; received 'w3'; choose one of those\n"
    )
