"""`t2r bench` from the command line: what it prints, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from cli_models import Output, run
from t2r_export.bench import batches, decode, exports, graphs, limit
from t2r_export.bench.exports import ExportFigures
from t2r_export.bench.limit import Bandwidth
from t2r_export.bench.timing import StepFigures
from t2r_runtime.errors import CheckFailed

SPREAD = {"median": 2.0, "low": 1.0, "high": 3.0, "count": 3, "ratio": 1.0}
RESULT: dict[str, Any] = {
    "format": "t2r-bench-decode",
    "machine": {"cpu": "A CPU"},
    "size": "tiny",
    "candidates": [{"name": "t2r:w4", "file_bytes": 3_000_000}],
    "steps": [{"name": "t2r:w4", "threads": 2, "context": 16, **SPREAD, "resident": 5_000_000, "peak": 6_000_000}],
    "prompts": [],
    "starts": [{"name": "t2r:w4", "threads": 2, **SPREAD}],
    "bandwidth": [{"threads": 2, "form": "a way", "median": 3e10, "low": 2e10, "high": 4e10, "count": 3}],
    "limits": [],
}


def test_decode(capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans: list[decode.Plan] = []
    monkeypatch.setattr(decode, "bench_decode", lambda plan, note: (plans.append(plan), note("at work"), RESULT)[-1])
    options = ["--engine", "t2r:w4", "--threads", "1,2", "--contexts", "16,300", "--prompts", "none", "--tokens", 3]
    out, err = run(capsys, "bench", "decode", *options, "--plots", tmp_path)
    assert "tiny, 2 threads: ms a token at each length" in out
    assert "2.00 (1.00-3.00)" in out
    assert "at work" in err
    assert f"wrote {tmp_path / 'time-tiny-2.svg'}" in err
    assert (tmp_path / "memory-tiny-2.png").is_file()
    plan = plans[0]
    assert (plan.engines, plan.threads, plan.contexts) == (("t2r:w4",), (1, 2), (16, 300))
    assert (plan.prompts, plan.tokens) == ((), 3)
    out, _ = run(capsys, "bench", "decode", "--engine", "t2r:w4", "--json")
    assert json.loads(out) == RESULT
    assert out.count("\n") == 1


def test_plot(capsys: Output, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    out, _ = run(capsys, "bench", "plot", tmp_path / "result.json", tmp_path / "plots", "--only", "t2r:w4")
    assert len(out.splitlines()) == 4
    assert all(Path(line).is_file() for line in out.splitlines())
    _, err = run(capsys, "bench", "plot", tmp_path / "none.json", tmp_path, code=2)
    assert "does not exist" in err


def test_batch(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"name": "t2r:w4", "threads": 2, "batch": 4, **SPREAD, "tokens_per_second": 500.0, "gain": 2.5}
    monkeypatch.setattr(batches, "bench_batches", lambda plan, note: {"size": plan.size, "batches": [row]})
    out, _ = run(capsys, "bench", "batch", "--batches", "1,4")
    assert "500" in out
    assert json.loads(run(capsys, "bench", "batch", "--json")[0])["batches"][0]["gain"] == 2.5


def test_export(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = ExportFigures("t2r:float32", "tiny", 10, 40, 1.5, 1.4, 1.6, 80, 44)
    monkeypatch.setattr(exports, "bench_export", lambda sizes, engines, rounds: [figures])
    out, _ = run(capsys, "bench", "export", "--size", "tiny")
    assert "1.5 (1.4-1.6)" in out
    result = json.loads(run(capsys, "bench", "export", "--json")[0])
    assert result["export"][0]["memory_ratio"] == 2.0
    assert "torch" in result["machine"]


def test_bandwidth(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "bandwidth", lambda threads: Bandwidth(threads, 2e9, "a way", {"a way": 2e9}))
    out, _ = run(capsys, "bench", "bandwidth", "--threads", "1")
    assert out.splitlines()[1].split() == ["1", "a", "way", "2.0"]
    result = json.loads(run(capsys, "bench", "bandwidth", "--json")[0])
    assert [b["threads"] for b in result["bandwidth"]] == [1, 2]


@pytest.mark.parametrize("verb", ["layouts", "targets"])
def test_graphs(verb: str, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    step = StepFigures("layers", 2.0, 1.9, 2.1, 1.0)
    monkeypatch.setattr(graphs, "bench_graphs", lambda forms, size, rounds, threads: [step])
    assert "1.000" in run(capsys, "bench", verb, "--rounds", 1)[0]
    assert json.loads(run(capsys, "bench", verb, "--json")[0])["graphs"][0]["ratio"] == 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["export", "--size", "huge"], "t2r: expected a size of "),
        (
            ["decode", "--engine", "vllm:x"],
            "t2r: expected an engine of t2r, genai, llama.cpp, torch; received 'vllm:x'",
        ),
        (["decode", "--contexts", "16,-3"], "'16,-3' is not whole numbers from 1, as 16,128"),
        (["decode", "--threads", "0"], "'0' is not whole numbers"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, capsys: Output) -> None:
    _, err = run(capsys, "bench", *arguments, code=2)
    assert message in err
    assert err.count("\n") == 1


def test_a_peer_that_is_not_installed(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _, err = run(capsys, "bench", "decode", "--engine", "t2r:w4", "--engine", "genai:int4", code=2)
    assert "received no onnxruntime_genai, transformers; install the extra `peers`" in err


def test_a_graph_that_fails_parity_has_no_speed(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(candidate: object, size: str, folder: Path) -> None:
        raise CheckFailed("no speed for graph.onnx, which is not the model")

    monkeypatch.setattr(decode, "make", refuse)
    out, err = run(capsys, "bench", "decode", "--engine", "t2r:w4", code=1)
    assert out == ""
    assert "t2r: check failed: no speed for graph.onnx" in err
