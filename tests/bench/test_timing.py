"""Turns, ratios and spreads: arithmetic, with clocks that the test winds."""

import os
import sys

import numpy as np
import pytest

from t2r_export.bench import timing
from t2r_export.bench.timing import Spread
from t2r_runtime.errors import CheckFailed


def test_the_ratio_is_of_medians_and_the_first_call_of_a_turn_does_not_count() -> None:
    now = [0.0]
    costs = {"a": iter([9.0, 2.0, 2.0, 50.0] * 3), "b": iter([9.0, 5.0, 5.0, 5.0] * 3)}

    def candidate(name: str):
        def call() -> None:
            now[0] += next(costs[name]) / 1e3

        return call

    a, b = timing.interleaved({"a": candidate("a"), "b": candidate("b")}, rounds=3, clock=lambda: now[0])
    assert a.milliseconds == pytest.approx(2.0)
    assert b.milliseconds == pytest.approx(5.0)
    assert (a.ratio, b.ratio) == (pytest.approx(1.0), pytest.approx(2.5))


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    timing.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=4, calls=2)
    turns = np.array(calls).reshape(-1, 3)
    assert (turns == turns[:, :1]).all()
    assert sorted(turns[:2, 0]) == ["a", "b"]
    assert len(turns) == 8


def test_the_order_changes_from_round_to_round() -> None:
    rounds = np.array(timing.turns("abc", 20)).reshape(20, 3)
    assert {tuple(sorted(order)) for order in rounds} == {("a", "b", "c")}
    assert len({tuple(order) for order in rounds}) > 1


def test_spread() -> None:
    spread = Spread.of([4.0, 1.0, 2.0])
    assert (spread.median, spread.count) == (2.0, 3)
    assert spread.low == pytest.approx(1.2)
    assert spread.high == pytest.approx(3.6)
    assert spread.scaled(10) == Spread(20.0, spread.low * 10, spread.high * 10, 3)


def test_a_rate_is_low_where_the_time_is_high() -> None:
    rate = Spread(2.0, 1.0, 4.0, 3).inverse(8)
    assert rate == Spread(4.0, 2.0, 8.0, 3)


def test_run_measures_a_process() -> None:
    seconds, peak = timing.run([sys.executable, "-c", "x = bytearray(1 << 26); print('lost')"])
    assert seconds > 0
    assert peak > 1 << 26


def test_run_does_not_measure_this_process() -> None:
    here = bytearray(os.urandom(1 << 20) * 128)
    _, peak = timing.run([sys.executable, "-c", "pass"])
    assert peak < len(here)


def test_run_refuses_a_process_that_failed() -> None:
    with pytest.raises(CheckFailed, match="ended with status 7"):
        timing.run([sys.executable, "-c", "raise SystemExit(7)"])


def test_the_machine_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PEER_PACKAGES", ("no-such-package",))
    machine = timing.machine()
    assert machine["no-such-package"] is None
    assert machine["cores"] >= 1
    assert {"cpu", "memory_bytes", "torch", "onnxruntime", "python", "t2r-export"} <= machine.keys()
