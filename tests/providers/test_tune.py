"""Settings tried on a graph, and the choice of the simplest within noise."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import small
from t2r_export.config.bench import BenchConfig
from t2r_export.providers import bench as bench_module
from t2r_export.providers import tune as module
from t2r_export.providers.bandwidth import Bandwidth
from t2r_export.providers.tune import AGAIN, OWN, Setting, Tried, around, best_of, thread_counts, tune
from t2r_runtime.errors import UserError

SHORT = BenchConfig(steps=3, warmup=1, prompt=5, rounds=2, starts=1)
GRAPH = Path("g.onnx")


class Figures(NamedTuple):
    ratio: float


class Found(NamedTuple):
    machine: dict[str, Any]
    graphs: list[Figures]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int | None, dict[str, str]]]]:
    """Settings measured in each run, on a four-core machine that is fastest with two threads and default settings."""
    log: list[list[tuple[int | None, dict[str, str]]]] = []

    def measured(candidates: list[tuple[Path, BenchConfig]], say: object) -> Found:
        assert {(path, config.rounds, config.starts) for path, config in candidates} == {(GRAPH, 2, 0)}
        opened = [(config.threads, dict(config.session_config)) for _, config in candidates]
        log.append(opened)
        threads = {None: 1.0, 1: 1.3, 2: 0.8, 4: 1.01}
        return Found({}, [Figures(threads[count] + 0.1 * bool(entries)) for count, entries in opened])

    monkeypatch.setattr(module, "bench_each", measured)
    monkeypatch.setattr(module, "thread_counts", lambda: [1, 2, 4])
    return log


def test_threads_then_other_settings(runs: list[list[tuple[int | None, dict[str, str]]]]) -> None:
    found = tune(GRAPH, SHORT)
    assert [count for count, _ in runs[0]] == [None, None, 1, 2, 4]
    assert [count for count, _ in runs[1]] == [None, None, 2, 2, 2, 2]
    assert [bool(entries) for _, entries in runs[1]] == [False, False, False, True, True, True]
    assert found.best == Setting("threads 2", 2)
    assert found.best.arguments == {"threads": 2}
    assert len(found.tried) == 11


def test_given_threads_are_the_only_ones(runs: list[list[tuple[int | None, dict[str, str]]]]) -> None:
    assert tune(GRAPH, replace(SHORT, threads=4)).best is OWN, "it gains nothing"
    assert [count for count, _ in runs[0]] == [None, None, 4]


def tried(own: float, again: float, *others: float) -> list[Tried]:
    settings = [OWN, AGAIN, *(Setting(f"threads {n}", n) for n in range(1, len(others) + 1))]
    return [Tried(setting, Figures(ratio)) for setting, ratio in zip(settings, (own, again, *others), strict=True)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ratios, taken",
    [
        ((1.0, 1.01, 0.96), "the runtime's own"),  # too small a gain for an argument
        ((1.0, 1.01, 0.94), "threads 1"),
        ((1.0, 1.10, 0.94), "the runtime's own"),  # the repeated baseline differs by more
        ((1.0, 0.90, 0.94), "the runtime's own"),  # the repeated baseline is no setting
        ((1.0, 1.00, 0.82, 0.80), "threads 1"),  # the first of two equally good ones
        ((1.0, 1.00, 0.90, 0.80), "threads 2"),
    ],
)
def test_best_is_simplest_within_noise(ratios: tuple[float, ...], taken: str) -> None:
    assert best_of(tried(*ratios)).name == taken


def test_one_thread_has_fewer_settings() -> None:
    assert [s.name for s in around(Setting("threads 1", 1))] == ["threads 1", "threads 1, weights as in the file"]
    assert [s.threads for s in around(OWN)] == [None, None, None]
    assert around(OWN)[0].arguments == {"session_config": {"session.intra_op.allow_spinning": "0"}}


@pytest.mark.parametrize("usable, counts", [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_thread_counts(usable: int, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)), raising=False)
    assert thread_counts() == counts


def test_real_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "SETTLE", 0)
    monkeypatch.setattr(bench_module, "bandwidth", lambda threads: Bandwidth(threads, 1e9, "a way", {"a way": 1e9}))
    monkeypatch.setattr(module, "thread_counts", lambda: [1])
    small.graph(tmp_path / "g.onnx", "rotary_drop", batch=1, prefill=True)
    found = tune(tmp_path / "g.onnx", replace(SHORT, rounds=1))
    assert all(one.figures.milliseconds.count == 3 for one in found.tried)
    assert found.best in [one.setting for one in found.tried]
    with pytest.raises(UserError, match="none.onnx"):
        tune(tmp_path / "none.onnx", SHORT)
