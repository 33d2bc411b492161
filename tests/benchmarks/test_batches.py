"""Throughput by batch size, and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comparison import batches, exports
from comparison.batches import BatchPlan, bench_batches
from comparison.exports import ExportFigures, bench_export
from t2r_export.errors import CheckFailed
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.slow


class Player:
    """A Worker without a process; a step takes 1 ms plus 0.5 ms per sequence."""

    def __init__(self, engine: str, path: Path, threads: int, capacity: int, options: dict[str, int]) -> None:
        self.batch = options["batch"]

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None: ...

    def open(self) -> None:
        if self.batch > 100:
            raise UserError("t2r to open", "out of memory", "leave it out")

    def place(self, context: int) -> None: ...

    def decode(self, tokens: int) -> list[float]:
        return [1e-3 * (1 + self.batch / 2)] * tokens

    def memory(self) -> dict[str, int]:
        return {"resident": 1, "peak": 2}


@pytest.mark.usefixtures("tiny")
def test_batch_throughput_and_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "Worker", Player)
    monkeypatch.setattr("comparison.decode.SETTLE", 0)
    plan = BatchPlan(size="tiny", engines=("t2r:float32",), batches=(1, 4, 101), threads=(1,), rounds=2, tokens=3)
    one, four, too_many = bench_batches(plan)["batches"]
    assert one["name"] == "t2r:float32:batch=any"
    assert (one["median"], four["median"]) == (pytest.approx(1.5), pytest.approx(3.0))
    assert four["tokens_per_second"] == pytest.approx(4 / 3e-3)
    assert (one["gain"], four["gain"]) == (1.0, pytest.approx(2.0))
    assert four["count"] == 6
    assert too_many["error"] == "out of memory"


@pytest.mark.usefixtures("tiny")
def test_real_batch() -> None:
    plan = BatchPlan(size="tiny", engines=("t2r:w4",), batches=(1, 3), threads=(1,), rounds=1, tokens=2)
    assert [row["batch"] for row in bench_batches(plan)["batches"] if row["median"] > 0] == [1, 3]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"engines": ("torch:t2r",)}, "graphs of t2r"),
        ({"batches": (1, 1 << 20)}, "batches from 1 to"),
        ({"batches": ()}, "b"),
    ],
)
def test_invalid_batches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BatchPlan(**{"engines": ("t2r:w4",), **options})


@pytest.mark.usefixtures("tiny")
def test_export_runs_in_process(tmp_path: Path) -> None:
    form = "t2r:w4:K=4:block=16:head_bits=4:target=fused:top_k=1:prefill=1"
    [made] = bench_export(["tiny"], [form], 1, tmp_path)
    assert (made.name, made.size, made.ratio) == (form, "tiny", 1.0)
    assert made.weight_bytes == 4 * made.parameters
    assert 0 < made.file_bytes < made.weight_bytes + 100_000
    assert made.seconds > 0
    assert made.peak_bytes > 1 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("tiny")
def test_export_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def run(command: list[str]) -> tuple[float, int]:
        builder = "onnxruntime_genai.models.builder" in command
        log.append("genai" if builder else "t2r")
        out = Path(command[command.index("-o") + 1] if builder else command[6])
        (out if builder else out.parent).mkdir(exist_ok=True)
        (out / "model" if builder else out).write_bytes(b"12345")
        return (8.0 if builder else 2.0), 1000

    monkeypatch.setattr(exports, "run", run)
    monkeypatch.setattr(exports, "require_installed", lambda candidates: None)
    ours, theirs = bench_export(["tiny"], ["t2r:w4", "genai:int4"], rounds=3)
    assert sorted(log) == ["genai"] * 3 + ["t2r"] * 3
    assert (ours.seconds, theirs.seconds, theirs.ratio) == (2.0, 8.0, 4.0)
    assert (ours.file_bytes, theirs.file_bytes) == (5, 5)


@pytest.mark.usefixtures("tiny")
def test_failed_export(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckFailed, match="ended with status 2"):
        bench_export(["tiny"], ["t2r:w4:target=none"])


def test_engine_without_exporter_is_refused() -> None:
    with pytest.raises(UserError, match="an exporter of t2r, genai; received torch:t2r"):
        bench_export(["smollm-135m"], ["torch:t2r"])


@pytest.mark.usefixtures("tiny")
def test_unknown_export_option_is_refused() -> None:
    with pytest.raises(UserError, match="options of an export: K, rule, positions, gate, prefill, .*; received batch"):
        bench_export(["tiny"], ["t2r:w4:batch=3"])
    with pytest.raises(UserError, match="a whole number for K; received 'many'"):
        bench_export(["tiny"], ["t2r:w4:K=many"])


def test_memory_ratio() -> None:
    assert ExportFigures("a", "tiny", 10, 40, 1.5, 1.0, 2.0, 80, 44).memory_ratio == 2.0
