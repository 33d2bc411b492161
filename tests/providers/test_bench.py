"""Benchmarks of graphs: statistics, order of turns, refused input. No test asserts a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small
from t2r_export.config.bench import BenchConfig
from t2r_export.providers import bench as module
from t2r_export.providers.bandwidth import Bandwidth
from t2r_export.providers.bench import Spread, bench, machine, turns
from t2r_export.providers.timed import TimedDecoder
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

SHORT = {"steps": 3, "warmup": 1, "prompt": 5, "rounds": 2, "starts": 1, "threads": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE", 0)
    monkeypatch.setattr(module, "bandwidth", lambda threads: Bandwidth(threads, 1e9, "a way", {"a way": 1e9}))


class Player:
    """A Worker without a process: two milliseconds per step of the graph `a`, and five of the others."""

    log: list[tuple[Any, ...]] = []

    def __init__(self, kind: type) -> None:
        assert kind is TimedDecoder

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        if name == "__init__":
            self.graph, self.options = arguments, options
        self.log.append((self.graph[0].stem, name, *arguments))
        seconds = 0.002 if self.graph[0].stem == "a" else 0.005
        signature = Decoder(self.graph[0]).signature
        answers = {"about": (signature, {"cpu": 9}), "prompt": 0.5, "prompt_by_steps": 2.0, "memory": 7_000_000}
        return [seconds] * arguments[0] if name == "steps" else answers.get(name)

    def close(self) -> None:
        self.log.append((self.graph[0].stem, "close"))


@pytest.fixture
def graphs(tmp_path: Path) -> list[Path]:
    """`a` with a prefill graph, and `b` without."""
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, prefill in zip(paths, (True, False), strict=True):
        small.graph(path, "rotary_drop", batch=1, prefill=prefill)
    return paths


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Player]:
    monkeypatch.setattr(Player, "log", [])
    monkeypatch.setattr(module, "Worker", Player)
    return Player


def test_medians_ratios_rates_and_limit(graphs: list[Path], played: type[Player]) -> None:
    a, b = bench(graphs, BenchConfig(**SHORT)).graphs
    assert (a.milliseconds.median, b.milliseconds.median) == (pytest.approx(2.0), pytest.approx(5.0))
    assert (a.ratio, b.ratio) == (1.0, pytest.approx(2.5))
    assert (a.milliseconds.count, a.prompt.count) == (2 * 3, 2)
    assert a.prompt.median == pytest.approx(5 / 0.5)
    assert a.prompt_by_steps is not None
    assert a.prompt_by_steps.median == pytest.approx(5 / 2.0)
    assert b.prompt_by_steps is None
    assert a.memory == 7_000_000
    assert a.start is not None and a.start.count == 1
    assert a.token is not None and a.limit is not None
    assert a.limit == pytest.approx(1e3 * a.token.total / 1e9)
    assert a.distance == pytest.approx(2.0 / a.limit)
    assert a.placement == {"cpu": 9}


def test_graphs_are_open_in_turns_then_closed(graphs: list[Path], played: type[Player]) -> None:
    bench(graphs, BenchConfig(**SHORT))
    calls = [(graph, name) for graph, name, *_ in played.log]
    assert calls[:4] == [(g, name) for name in ("__init__", "about") for g in "ab"]
    order = [graph for graph, name in calls if name == "steps"]
    assert [sorted(order[i : i + 2]) for i in (0, 2)] == [["a", "b"]] * 2
    assert calls.count(("a", "__init__")) == calls.count(("a", "close")) == 2  # once to take turns, once to start
    assert ("a", "steps", 3, 1) in played.log
    assert ("b", "prompt", 5) in played.log
    assert ("b", "prompt_by_steps", 5) not in played.log


def test_failed_open_closes_all(graphs: list[Path], played: type[Player], monkeypatch: pytest.MonkeyPatch) -> None:
    def call(self: Player, name: str, *arguments: Any, **options: Any) -> Any:
        self.graph = arguments
        if arguments[0].stem == "b":
            raise UserError("a graph", "another", "correct it")

    monkeypatch.setattr(played, "call", call)
    with pytest.raises(UserError, match="correct it"):
        bench(graphs, BenchConfig(**SHORT))
    assert {graph for graph, name, *_ in played.log if name == "close"} == {"a", "b"}


def test_no_limit_for_device_memory(graphs: list[Path], played: type[Player]) -> None:
    found = bench(graphs[:1], BenchConfig(**SHORT, provider="cuda"))
    assert found.bandwidth is None
    assert found.graphs[0].limit is None
    assert found.graphs[0].distance is None


def test_no_limit_for_growing_states(tmp_path: Path, played: type[Player]) -> None:
    small.graph(tmp_path / "a.onnx", "softmax", batch=1)
    assert bench([tmp_path / "a.onnx"], BenchConfig(**SHORT)).graphs[0].distance is None


@pytest.mark.slow
def test_real_processes(graphs: list[Path]) -> None:
    said: list[str] = []
    found = bench([*graphs, graphs[0]], BenchConfig(**SHORT), said.append)
    assert [figures.graph for figures in found.graphs] == [*graphs, graphs[0]]
    assert all(figures.milliseconds.median > 0 and figures.memory for figures in found.graphs)
    assert [figures.prompt_by_steps is None for figures in found.graphs] == [False, True, False]
    assert said[0] == "opening"
    assert "turn 6 of 6" in said


def test_positions_are_not_exceeded(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "learned", batch=1)
    with pytest.raises(UserError, match=r"at most \d+ tokens, where .* end; received 500 \+ 1 \+ 3"):
        bench([tmp_path / "graph.onnx"], BenchConfig(**{**SHORT, "prompt": 500}))


@pytest.mark.parametrize("counts", [{"steps": 0}, {"prompt": 0}, {"rounds": 0}, {"warmup": -1}, {"starts": -1}])
def test_invalid_counts_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(UserError, match=f"expected {next(iter(counts))} to be an integer from "):
        BenchConfig(**counts)


def test_translator_needs_sentences(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "translator_cross_linear")
    with pytest.raises(UserError, match="--sentences for a translator; received none; name a file with --sentences"):
        bench([tmp_path / "graph.onnx"], BenchConfig(**SHORT))


def test_no_graph_is_refused() -> None:
    with pytest.raises(UserError, match="at least one graph"):
        bench([])


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 2, "top_k": 2, "prefill": True}])
def test_timed_decoder_decodes_greedily(options: dict[str, Any], tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "rotary_drop", **options)
    timed, batch = TimedDecoder(tmp_path / "graph.onnx"), options["batch"]
    ids = np.random.default_rng(0).integers(0, small.VOCABULARY, (batch, 6))
    decoder = Decoder(tmp_path / "graph.onnx")
    token = decoder.prefill(ids).argmax(-1)
    for read in (timed.prompt_by_steps, timed.prompt):
        assert read(6) > 0
        assert (timed._next == token).all()
    assert len(timed.steps(3, warmup=2)) == 3
    for _ in range(5):
        token = decoder.step(token).argmax(-1)
    assert (timed._next == token).all()
    signature, placement = timed.about()
    assert (signature, placement) == (decoder.signature, decoder.placement)


def test_timed_process_loads_no_torch() -> None:
    program = (
        "import sys; from t2r_export.providers import timed;"
        "assert not {'torch', 'onnx', 'tokenizers', 'click'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_turns_of_every_round() -> None:
    rounds = np.array(turns("abc", 20)).reshape(20, 3)
    assert {tuple(sorted(order)) for order in rounds} == {("a", "b", "c")}
    assert len({tuple(order) for order in rounds}) > 1


def test_spread() -> None:
    spread = Spread.of([4.0, 1.0, 2.0])
    assert (spread.median, spread.count) == (2.0, 3)
    assert spread.low == pytest.approx(1.2)
    assert spread.high == pytest.approx(3.6)
    assert spread.scaled(10) == Spread(20.0, spread.low * 10, spread.high * 10, 3)


def test_spread_inverse() -> None:
    rate = Spread(2.0, 1.0, 4.0, 3).inverse(8)
    assert rate == Spread(4.0, 2.0, 8.0, 3)


def test_machine_reports_missing_packages() -> None:
    found = machine(("no-such-package", "numpy"))
    assert found["no-such-package"] is None
    assert found["numpy"] == np.__version__
    assert found["cores"] >= 1
