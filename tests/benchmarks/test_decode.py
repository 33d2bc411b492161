"""The decoder comparison with fake processes: order, rows, failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from comparison import decode, engines
from comparison.decode import CONTEXTS, Plan, bench_decode, limits
from comparison.engines import Files, parse
from comparison.worker import DISCARDED
from t2r_export.config.model import ModelConfig
from t2r_export.errors import CheckFailed
from t2r_export.providers.bandwidth import Bandwidth, TokenBytes
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.slow


class Player:
    """A Worker without a process: 2 ms per token, and 10 ms for the engine `torch`."""

    log: list[tuple[Any, ...]] = []
    broken: set[tuple[str, str]] = set()  # (engine, call) that fails

    def __init__(self, engine: str, path: Path, threads: int, capacity: int, options: object = None) -> None:
        self.engine, self.capacity = engine, capacity
        self._do("start", threads, capacity)

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._do("close")

    def open(self) -> None:
        self._do("open")

    def place(self, context: int) -> None:
        self._do("place", context)

    def decode(self, tokens: int) -> list[float]:
        self._do("decode", tokens)
        return [0.010 if self.engine == "torch" else 0.002] * tokens

    def read(self, tokens: int) -> float:
        self._do("read", tokens)
        return 0.5 if self.engine == "torch" else 0.25

    def turn(self, tokens: int) -> float:
        self._do("turn", tokens)
        return 0.030 if self.engine == "torch" else 0.020

    def first_token(self, prompt: int) -> None:
        self._do("first_token", prompt)

    def memory(self) -> dict[str, int]:
        return {"resident": 7_000_000, "peak": 9_000_000}

    def _do(self, call: str, *values: Any) -> None:
        self.log.append((self.engine, call, *values))
        if (self.engine, call) in self.broken:
            raise UserError(f"{self.engine} to {call}", "out of memory", "leave it out")


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Player, "log", [])
    monkeypatch.setattr(Player, "broken", set())
    monkeypatch.setattr(decode, "Worker", Player)
    monkeypatch.setattr(decode, "SETTLE", 0)
    monkeypatch.setattr(decode, "bandwidth", lambda threads: Bandwidth(threads, 1e9, "a way", {"a way": 1e9}))
    token = TokenBytes(weights=900_000, states=100_000)
    monkeypatch.setattr(
        decode, "make", lambda c, size, folder: Files(folder / "x", 5, token if c.engine == "t2r" else None)
    )


def plan(**options: Any) -> Plan:
    small: dict[str, Any] = {"contexts": (16, 300), "rounds": 3, "tokens": 4, "prompts": (20,), "starts": 2}
    return Plan(**{"size": "tiny", "engines": ("t2r:w4", "torch:softmax"), **small, **options})


@pytest.mark.usefixtures("tiny")
def test_medians_ratios_memory_and_counts() -> None:
    result = bench_decode(plan())
    ours, torch = [row for row in result["steps"] if row["context"] == 300]
    assert (ours["median"], torch["median"]) == (pytest.approx(2.0), pytest.approx(10.0))
    assert (ours["ratio"], torch["ratio"]) == (1.0, pytest.approx(5.0))
    assert (ours["count"], ours["resident"], ours["peak"]) == (3 * 4, 7_000_000, 9_000_000)
    ours, torch = result["prompts"]
    assert (ours["median"], torch["median"]) == (pytest.approx(80), pytest.approx(40))
    assert [row["count"] for row in result["starts"]] == [2, 2]
    assert {"cpu", "cores", "memory_bytes", "torch"} <= result["machine"].keys()
    assert json.loads(json.dumps(result)) == result


@pytest.mark.usefixtures("tiny")
def test_floor_is_bytes_over_bandwidth() -> None:
    ours = bench_decode(plan())["limits"]
    assert len(ours) == 1  # not torch: its bytes are unknown
    assert ours[0]["floor"] == pytest.approx(1.0)  # ms: a million bytes at 1 GB/s
    assert ours[0]["distance"] == pytest.approx(2.0)


@pytest.mark.usefixtures("tiny")
def test_graphs_are_open_in_turns_then_closed() -> None:
    bench_decode(plan(contexts=(16,), prompts=(), starts=0))
    calls = [(engine, call) for engine, call, *_ in Player.log]
    assert calls[:6] == [(e, c) for e in ("t2r", "torch") for c in ("start", "open", "place")]
    turns = [engine for engine, call in calls if call == "decode"]
    assert [sorted(turns[i : i + 2]) for i in (0, 2, 4)] == [["t2r", "torch"]] * 3
    assert [call for _, call in calls[-2:]] == ["close", "close"]


@pytest.mark.usefixtures("tiny")
def test_turn_reads_after_placed_context() -> None:
    result = bench_decode(plan(contexts=(16,), prompts=(), starts=0, turn_contexts=(300,), turn_tokens=30))
    ours, torch = result["turns"]
    assert (ours["median"], torch["median"]) == (pytest.approx(20.0), pytest.approx(30.0))  # ms
    assert (ours["context"], ours["count"], result["turn_tokens"]) == (300, 3, 30)
    calls = [call for engine, *call in Player.log if engine == "t2r"][-7:]
    assert calls == [["open"], ["place", 300], *[["turn", 30]] * 4, ["close"]], "the first turn does not count"
    assert ("t2r", "start", 2, 300 + 30 + DISCARDED) in Player.log


@pytest.mark.usefixtures("tiny")
def test_worker_capacity() -> None:
    bench_decode(plan(contexts=(16,), prompts=(), starts=0))
    assert Player.log[0] == ("t2r", "start", 2, 16 + 4 + DISCARDED)


@pytest.mark.usefixtures("tiny")
def test_growing_cache_is_limited() -> None:
    result = bench_decode(plan(contexts=(16, 100_000), engines=("t2r:w4", "torch:softmax", "torch:t2r")))
    measured = [(row["name"], row["context"]) for row in result["steps"]]
    assert ("torch:softmax", 100_000) not in measured
    assert {("t2r:w4", 100_000), ("torch:t2r", 100_000), ("torch:softmax", 16)} <= set(measured)


def test_positions_are_not_exceeded() -> None:
    learned = Plan(size="gpt2-small", engines=("t2r:w4",), contexts=CONTEXTS)
    assert learned.takes(parse("t2r:w4"), 1024)
    assert not learned.takes(parse("t2r:w4"), 1025)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("call", ["open", "place", "decode"])
def test_failed_engine_has_reason_in_row(call: str) -> None:
    Player.broken.add(("torch", call))
    ours, torch = bench_decode(plan(contexts=(16,), prompts=(), starts=0))["steps"]
    assert ours["median"] == pytest.approx(2.0)
    assert torch == {"name": "torch:softmax", "threads": 2, "context": 16, "error": "out of memory"}
    assert Player.log.count(("torch", call)) + Player.log.count(("torch", call, 16)) <= 1


@pytest.mark.usefixtures("tiny")
def test_engine_without_start_has_no_time() -> None:
    Player.broken.add(("torch", "first_token"))
    rows = bench_decode(plan(prompts=()))["starts"]
    assert rows[0]["count"] == 2
    assert rows[1] == {"name": "torch:softmax", "threads": 2, "error": "out of memory"}


@pytest.mark.usefixtures("tiny")
def test_parity_before_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(candidate: object, size: str, folder: Path) -> Files:
        raise CheckFailed("no speed for graph.onnx, which is not the model")

    monkeypatch.setattr(decode, "make", refuse)
    with pytest.raises(CheckFailed, match="no speed"):
        bench_decode(plan())
    assert Player.log == []


@pytest.mark.usefixtures("tiny")
def test_controls_share_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(candidate: engines.Candidate, size: str, folder: Path) -> Files:
        assert folder.is_dir()
        made.append(candidate.name)
        return Files(folder, 1)

    monkeypatch.setattr(decode, "make", make)
    result = bench_decode(plan(engines=("t2r:w4", "t2r:w4:again", "t2r:w8"), contexts=(16,), prompts=(), starts=0))
    assert made == ["t2r:w4", "t2r:w8"]
    assert [row["name"] for row in result["steps"]] == ["t2r:w4", "t2r:w4:again", "t2r:w8"]


def test_limits_per_thread_count(tmp_path: Path) -> None:
    files = {"a": Files(tmp_path, 1, TokenBytes(3_000_000, 1_000_000))}
    steps = [
        {"name": "a", "threads": t, "context": c, "median": m}
        for t, c, m in ((1, 16, 8.0), (1, 128, 9.0), (2, 16, 6.0))
    ]
    rows = {"steps": steps, "bandwidth": [{"threads": 1, "median": 1e9}, {"threads": 2, "median": 2e9}]}
    assert [(row["threads"], row["floor"], row["distance"]) for row in limits(rows, files)] == [(1, 4, 2), (2, 2, 3)]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"engines": ("t2r:w4", "t2r:w4")}, "engines, each once"),
        ({"engines": ()}, "engines, each once; received none"),
        ({"contexts": (1 << 30,)}, "counts from 1 to"),
        ({"size": "huge"}, "a size of"),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_invalid_plans_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(**options)


def test_real_processes(tiny: ModelConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No fakes. Torch would take seconds to import; its runner has its own test."""
    from comparison.worker import Worker

    monkeypatch.setattr(decode, "Worker", Worker)
    monkeypatch.setattr(decode, "make", engines.make)
    notes: list[str] = []
    engines_ = ("t2r:w4", "t2r:float32:K=5")
    small = plan(engines=engines_, contexts=(16, 100_000), rounds=1, tokens=2, prompt_rounds=1, starts=1, threads=(1,))
    result = bench_decode(small, notes.append, tmp_path)
    measured = [(row["context"], row["name"]) for row in result["steps"]]
    assert measured == [(context, name) for context in (16, 100_000) for name in engines_]
    assert all(row["median"] > 0 for kind in ("steps", "prompts", "starts") for row in result[kind])
    assert notes[0] == "making t2r:w4"
    assert list(tmp_path.iterdir()) == []
