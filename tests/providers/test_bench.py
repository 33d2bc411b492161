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
from t2r_export.providers.bench import Spread, bench, machine, turns
from t2r_export.providers.timed import TimedDecoder
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

SHORT = {"steps": 3, "warmup": 1, "prompt": 5, "rounds": 2, "starts": 1, "threads": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE", 0)


LOG: list[tuple[Any, ...]] = []


class Player(TimedDecoder):
    """A TimedDecoder of chosen times: two milliseconds per step of the graph `a`, and five of the others."""

    def __init__(self, graph: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(graph, *arguments, **options)
        self.name = graph.stem
        LOG.append((self.name, "open"))

    def prompt(self, tokens: int) -> float:
        LOG.append((self.name, "prompt", tokens))
        return 0.5

    def prompt_by_steps(self, tokens: int) -> float:
        LOG.append((self.name, "prompt_by_steps", tokens))
        return 2.0

    def steps(self, count: int, warmup: int) -> list[float]:
        LOG.append((self.name, "steps", count, warmup))
        return [0.002 if self.name == "a" else 0.005] * count


@pytest.fixture
def graphs(tmp_path: Path) -> list[Path]:
    """`a` with a prefill graph, and `b` without."""
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path, prefill in zip(paths, (True, False), strict=True):
        small.graph(path, "rotary_drop", batch=1, prefill=prefill)
    return paths


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG.clear()
    monkeypatch.setattr(module, "TimedDecoder", Player)
    monkeypatch.setattr(module, "run", lambda *arguments: (0, "a greeting\n7000000", ""))


@pytest.mark.usefixtures("played")
def test_medians_ratios_and_rates(graphs: list[Path]) -> None:
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
    assert a.placement.keys() == {"cpu"}


@pytest.mark.usefixtures("played")
def test_graphs_are_open_and_take_turns(graphs: list[Path]) -> None:
    found = bench(graphs, BenchConfig(**{**SHORT, "starts": 0}))
    assert LOG[:2] == [("a", "open"), ("b", "open")]
    order = [graph for graph, name, *_ in LOG if name == "steps"]
    assert [sorted(order[i : i + 2]) for i in (0, 2)] == [["a", "b"]] * 2
    assert ("a", "steps", 3, 1) in LOG
    assert ("b", "prompt", 5) in LOG
    assert ("b", "prompt_by_steps", 5) not in LOG
    assert [(one.memory, one.start) for one in found.graphs] == [(None, None)] * 2


@pytest.mark.usefixtures("played")
def test_failed_start_is_error(graphs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for err, received in (("Traceback\n  line\nKeyError: 3\n", "KeyError: 3"), ("", "exit code -6")):
        monkeypatch.setattr(module, "run", lambda *arguments, err=err: (-6, "", err))
        with pytest.raises(UserError, match=f"expected a process that opens .*a.onnx; received {received}; "):
            bench(graphs[:1], BenchConfig(**SHORT))


@pytest.mark.slow
def test_real_processes(graphs: list[Path]) -> None:
    said: list[str] = []
    found = bench([*graphs, graphs[0]], BenchConfig(**SHORT), said.append)
    assert [figures.graph for figures in found.graphs] == [*graphs, graphs[0]]
    assert all(figures.milliseconds.median > 0 and figures.memory and figures.start for figures in found.graphs)
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


def test_translator_is_refused(tmp_path: Path) -> None:
    small.graph(tmp_path / "graph.onnx", "translator_cross_linear")
    with pytest.raises(UserError, match="expected the graph of a decoder; received a translator's; time t2r translate"):
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
