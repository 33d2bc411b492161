"""benchmarks/run.py: measurements, plots, the page, and the committed plan."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import run
from comparison import batches, decode, engines, plan, servers, translators
from comparison.decode import Plan
from comparison.engines import parse
from comparison.plan import read_plan
from t2r_export.config.model import ModelConfig
from t2r_export.errors import CheckFailed

pytestmark = pytest.mark.slow

PLAN = """
[forms]
default = "t2r:w4"
own = "t2r:w4:provider=t2r"
own_matched = "t2r:w4:head_bits=4:provider=t2r"
fast = "t2r:w4:block=128"

[[measurement]]
file = "decode.json"
kind = "decode"
plots = ["default"]
size = "tiny"
prompts = []
threads = [1, 2]
engines = ["default", "fast:K=16", "torch:softmax"]

[[measurement]]
file = "batch.json"
kind = "batch"
size = "tiny"
engines = ["fast"]
"""
SPREAD = {"median": 2.0, "low": 1.0, "high": 3.0, "count": 3, "ratio": 1.0}
MACHINE = {"cpu": "A CPU", "cores": 2, "memory_bytes": None, "system": "Linux"}
MACHINE |= dict.fromkeys(("python", "onnxruntime", "torch", "onnxruntime-genai", "llama-cpp-python"))
DECODED: dict[str, Any] = {
    "format": "t2r-bench-decode",
    "machine": MACHINE,
    "size": "tiny",
    "candidates": [{"name": "t2r:w4", "file_bytes": 3_000_000}],
    "steps": [{"name": "t2r:w4", "threads": 2, "context": 16, **SPREAD, "resident": 5_000_000, "peak": 6_000_000}],
    "prompts": [],
    "turns": [],
    "turn_tokens": 64,
    "starts": [{"name": "t2r:w4", "threads": 2, **SPREAD}],
    "bandwidth": [{"threads": 2, "form": "a way", "median": 3e10, "low": 2e10, "high": 4e10, "count": 3}],
    "limits": [],
}
BATCHED = {"format": "t2r-bench-batch", "machine": MACHINE, "size": "tiny", "batches": []}


@pytest.fixture
def place(tiny: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plan and a page; measurements are instant."""
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "page.md").write_text(
        "<!-- table decode.json ratios-2 -->\n<!-- end -->\n<!-- table export.json export -->\n<!-- end -->\n"
    )
    monkeypatch.setattr(plan, "bench_decode", lambda plan, note: DECODED | {"engines": plan.engines})
    monkeypatch.setattr(plan, "bench_batches", lambda plan, note: BATCHED)
    return tmp_path


def program(place: Path, *arguments: object) -> int:
    return run.main(["--plan", str(place / "plan.toml"), "--out", str(place / "out"), *map(str, arguments)])


def test_run_measures_draws_and_fills_page(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(place, "--page", place / "page.md") == 0
    names = {path.name for path in (place / "out").iterdir()}
    plots = {f"{kind}-tiny-2.{end}" for kind in ("time", "memory") for end in ("svg", "png")}
    assert names == {"decode.json", "batch.json"} | plots
    result = json.loads((place / "out" / "decode.json").read_text())
    assert result["engines"] == ["t2r:w4", "t2r:w4:block=128:K=16", "torch:softmax"]
    assert "| t2r:w4 | 1.00 |" in (place / "page.md").read_text()
    captured = capsys.readouterr()
    assert "tiny, 2 threads: resident memory, MB\n" in captured.out
    assert "page.md: nothing for export.json export" in captured.err


def test_run_only_one_result(place: Path) -> None:
    assert program(place, "--only", "batch.json") == 0
    assert [path.name for path in (place / "out").iterdir()] == ["batch.json"]


def test_run_keep(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert program(place) == 0
    for path in (place / "out").glob("*.svg"):
        path.unlink()
    monkeypatch.setattr(plan, "bench_decode", None)
    assert program(place, "--keep") == 0
    assert len(list((place / "out").glob("*.svg"))) == 2


def test_failed_parity_writes_no_result(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(plan: Plan, note: object) -> None:
        raise CheckFailed("no speed for graph.onnx, which is not the model")

    monkeypatch.setattr(plan, "bench_decode", refuse)
    assert program(place) == 1
    assert "no speed for graph.onnx" in capsys.readouterr().err
    assert list((place / "out").iterdir()) == []


@pytest.mark.parametrize(
    "change, message",
    [
        (("[forms]", "[forms"), "expected a plan in TOML at"),
        (('fast = "t2r:w4:block=128"', ""), r"\[forms\] with default, fast, own, own_matched, and"),
        (
            ('kind = "batch"', 'kind = "speed"'),
            "a kind of decode, batch, .*, serve, soak; received 'speed'",
        ),
        (('"batch.json"', '"decode.json"'), "a file of its own for each measurement"),
        (('"torch:softmax"', '"vllm:int4"'), "an engine of t2r, genai, llama.cpp, torch; received 'vllm:int4'"),
        (('size = "tiny"', 'size = "huge"'), "a size of "),
        (("threads = [1, 2]", "thread = 3"), "options of the kind decode for decode.json; received .*'thread'"),
    ],
)
def test_invalid_plan_is_refused(
    change: tuple[str, str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "plan.toml").write_text(PLAN.replace(*change))
    assert program(place) == 2
    assert re.search(message, capsys.readouterr().err)


def test_optional_measurement_is_skipped(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PLAN.replace('kind = "batch"', 'kind = "batch"\noptional = true').replace('["fast"]', '["torch:softmax"]')
    (place / "plan.toml").write_text(text)
    assert program(place) == 0
    assert "batch.json is left out: expected graphs of t2r" in capsys.readouterr().err
    assert not (place / "out" / "batch.json").exists()
    assert program(place, "--only", "batch.json") == 2


def test_measurement_that_is_left_out_unless_named(place: Path) -> None:
    (place / "plan.toml").write_text(PLAN.replace('kind = "batch"', 'kind = "batch"\nalone = true'))
    assert program(place) == 0
    assert not (place / "out" / "batch.json").exists()
    assert program(place, "--only", "batch.json") == 0
    assert (place / "out" / "batch.json").exists()


def test_unknown_result_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(place, "--only", "speed.json") == 2
    assert "expected results of the plan (decode.json, batch.json); received speed.json" in capsys.readouterr().err


def test_committed_plan_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement can start, and the page's placeholders match the tables."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(plan, "bench_decode", lambda made, note: made)
    monkeypatch.setattr(plan, "bench_batches", lambda made, note: made)
    forms, measurements = read_plan(run.HERE / "plan.toml")
    assert forms["fast"].startswith("t2r:")
    made = {m.file: m.prepare()(lambda _: None) for m in measurements if m.kind in ("decode", "batch")}
    assert isinstance(made["decode.json"], decode.Plan)
    assert isinstance(made["batch.json"], batches.BatchPlan)
    other = {"translate": translators.ENGINES, "serve": servers.ENGINES}
    for measurement in measurements:
        known = other.get(measurement.kind, engines.ENGINES)
        assert all(parse(text, known) for text in measurement.options.get("engines", ()))
        page = run.HERE.parent / "docs" / ("serving.md" if measurement.alone else "performance.md")
        assert f"<!-- table {measurement.file} " in page.read_text()
    assert {f"{form}:prefill=1" for form in forms.values()} <= set(made["decode.json"].engines)
