"""The model card has all measurements and, for each missing one, its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import small
import texts
from cli_models import Output, run
from t2r_export.checkpoints import checkpoint

BENCH = {
    "machine": {"cpu": "a processor", "cores": 2},
    "graphs": [
        {"graph": "/x/g.onnx", "milliseconds": {"median": 1.25}, "prompt": {"median": 640.0}, "memory": 12_000_000}
    ],
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = small.with_layers(small.LLAMA, small.linear(6, positions="after"), vocab_size=len(texts.LETTERS))
    finetune = {
        "stages": [{"stage": "distill", "steps": 70}],
        "tokens": 900,
        "files": ["t.txt"],
        "evaluation": {"finetuned": 2.5, "teacher": 2.25, "tokens": 31},
    }
    provenance = {"origin": {"name": "someone/tiny"}, "convert": {"layers": "all"}, "finetune": [finetune]}
    checkpoint.save(tmp_path / "model.pt", small.model(config), texts.tokenizer(), provenance)
    return tmp_path / "model.pt"


def test_measurements_are_in_the_card(model: Path, tmp_path: Path, capsys: Output) -> None:
    texts.write_text(tmp_path / "t.txt")
    graph = str(tmp_path / "g.onnx")
    run(capsys, "export", str(model), graph)
    verified = run(capsys, "verify", str(model), graph, "--steps", "20", "--json")[0]
    evaluated = run(
        capsys, "evaluate", str(model), str(tmp_path / "t.txt"), "--part", "all", "--lengths", "16", "--json"
    )[0]
    for name, text in (("verify", verified), ("evaluate", evaluated), ("bench", json.dumps(BENCH))):
        (tmp_path / f"{name}.json").write_text(text)
    given = ",".join(f"{name}={tmp_path}/{name}.json" for name in ("verify", "evaluate", "bench"))
    run(capsys, "save", str(model), str(tmp_path / "f"), "--as", f"transformers:{given}")
    card = (tmp_path / "f" / "README.md").read_text()
    check, length = json.loads(verified)["checks"][0], json.loads(evaluated)["lengths"][0]
    assert f"| {check['name']} | {check['worst']:.1e} | {check['tolerance']:.0e} |" in card
    assert "| graph against model: cpu, 20 steps | worst | tolerance |" in card
    assert f"| 16 | {length['nats']:.4f} |" in card
    assert "| g.onnx | 1.25 | 640 | 12 MB |" in card
    assert (
        "steps of distill 70; 900 tokens of t.txt. Nats per token of 31 held-out tokens: teacher 2.250, after 2.500"
        in card
    )
    assert "base_model: someone/tiny" in card
    assert "Not measured" not in card


def test_what_was_not_measured_is_not_said(model: Path, tmp_path: Path, capsys: Output) -> None:
    run(capsys, "save", str(model), str(tmp_path / "f"), "--as", "transformers")
    card = (tmp_path / "f" / "README.md").read_text()
    for verb in ("verify MODEL GRAPH", "evaluate MODEL TEXT", "bench GRAPH"):
        assert f"Not measured: `t2r {verb} --json" in card
    assert card.count("Not measured") == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"checks": 3}', '{"lengths": [{"length": 3}]}'])
@pytest.mark.parametrize("verb", ["verify", "evaluate", "bench"])
def test_another_file_is_refused(verb: str, text: str, model: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "r.json").write_text(text)
    _, err = run(
        capsys, "save", str(model), str(tmp_path / "f"), "--as", f"transformers:{verb}={tmp_path}/r.json", code=2
    )
    assert f"the output of `t2r {verb}" in err and err.count("\n") == 1
    assert not (tmp_path / "f").exists()
