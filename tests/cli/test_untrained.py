"""An untrained student is marked as such, from its conversion to its graph; a trained one is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from cli_models import Output, run
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.untrained import untrained
from t2r_export.graph.reader import metadata

LINE = (
    "note: 2 converted parts of this model are untrained, so its output is noise: train it with t2r finetune and export"
)
TRAINING = ["--batch", 2, "--length", 16, "--device", "cpu", "--every", "validate=1"]


def count(graph: Path) -> int | None:
    found = metadata(onnx.load(graph, load_external_data=False)).get("t2r.untrained")
    return None if found is None else int(json.loads(found))


def test_untrained_student_says_so(folder: Path, tmp_path: Path, capsys: Output) -> None:
    """One line of each verb; quantized, pruned and saved students keep the mark."""
    student, graph = tmp_path / "s.pt", tmp_path / "s.onnx"
    (tmp_path / "text").write_text("once upon a time")
    out, _ = run(capsys, "convert", folder / "model.pt", student, "--mixer", "linear:feature_size=5")
    assert "; 528 new parameters (13.6%); untrained" in out and out.endswith(
        "; untrained: train it with t2r finetune\n"
    )
    assert untrained(checkpoint.load(student).provenance) == ["blocks.0.parts.0", "blocks.1.parts.0"]
    verbs: list[tuple[Any, ...]] = [
        ("export", student, graph, "--prefill"),
        ("verify", student, graph, "--steps", 3),
        ("generate", graph, "--prompt", "a hen", "--max-tokens", 2),
        ("evaluate", graph, tmp_path / "text"),
        ("evaluate", student, tmp_path / "text", "--lengths", 4, "--part", "all"),
        ("score", graph, tmp_path / "text"),
        ("inspect", student),
        ("inspect", graph),
        ("quantize", graph, tmp_path / "q.onnx", "--scheme", "w8"),
        ("generate", tmp_path / "q.onnx", "--prompt", "a hen", "--max-tokens", 2),
        ("save", student, tmp_path / "folder", "--as", "transformers"),
        ("inspect", tmp_path / "folder"),
    ]
    for verb in verbs:
        _, said = run(capsys, *verb)
        assert said.count(LINE) == (verb[0] != "quantize"), verb
    assert "**Untrained**: no training has trained 2 converted parts" in (tmp_path / "folder/README.md").read_text()
    assert [count(path) for path in sorted(tmp_path.glob("[sq].onnx"))] == [2, 2]
    assert [count(path) for path in tmp_path.glob("s.onnx.*.onnx")] == [None]  # a companion


def test_stage_that_trains_removes_the_mark(folder: Path, tmp_path: Path, capsys: Output) -> None:
    """Unless it keeps the weights from before it."""
    (tmp_path / "text").write_text("once upon a time, there was a hen.\n<|endoftext|>\n" * 40)
    run(capsys, "convert", folder / "model.pt", tmp_path / "s.pt", "--mixer", "linear:feature_size=5")
    words = ["finetune", tmp_path / "s.pt", tmp_path / "t.pt", "--data", tmp_path / "text", "--force", *TRAINING]
    seen = []
    for stage, rate in (("transfer", "1e-2"), ("task", "1e-2"), ("task", "9")):
        run(capsys, *words, "--stages", stage, "--steps", 3, "--lr", rate)
        loaded = checkpoint.load(tmp_path / "t.pt")
        [kept] = loaded.provenance["finetune"][-1]["kept_steps"]
        left = 0 if kept else 2
        assert len(untrained(loaded.provenance)) == left
        _, said = run(capsys, "export", tmp_path / "t.pt", tmp_path / "t.onnx")
        assert (LINE in said) == bool(left) and count(tmp_path / "t.onnx") == (left or None)
        seen.append(left)
    assert seen == [0, 0, 2]


def test_models_that_work_without_training_have_no_mark(folder: Path, tmp_path: Path, capsys: Output) -> None:
    run(capsys, "convert", folder / "model.pt", tmp_path / "w.pt", "--mixer", "window:window=5,sinks=2")
    for model in (folder / "model.pt", tmp_path / "w.pt"):
        _, said = run(capsys, "export", model, tmp_path / "w.onnx")
        assert "untrained" not in said and count(tmp_path / "w.onnx") is None
