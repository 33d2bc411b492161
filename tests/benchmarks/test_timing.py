"""Timing of whole processes."""

import os
import sys

import pytest

from comparison import decode, timing
from t2r_export.errors import CheckFailed


def test_run_measures_process() -> None:
    seconds, peak = timing.run([sys.executable, "-c", "x = bytearray(1 << 26); print('lost')"])
    assert seconds > 0
    assert peak > 1 << 26


def test_run_excludes_this_process() -> None:
    here = bytearray(os.urandom(1 << 20) * 128)
    _, peak = timing.run([sys.executable, "-c", "pass"])
    assert peak < len(here)


def test_run_refuses_failed_process() -> None:
    with pytest.raises(CheckFailed, match="ended with status 7"):
        timing.run([sys.executable, "-c", "raise SystemExit(7)"])


def test_machine_reports_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PEER_PACKAGES", ("no-such-package",))
    machine = timing.machine()
    assert machine["no-such-package"] is None
    assert machine["cores"] >= 1
    assert {"cpu", "memory_bytes", "torch", "onnxruntime", "python", "t2r-export"} <= machine.keys()


def test_unsteady_rounds_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "SETTLE", 0)
    assert decode.is_steady([1.0, 1.0, 1.04, 1.04])
    assert not decode.is_steady([1.0, 1.0, 1.06, 1.06])
    rounds = {"settles": [1.0, 2.0, *[5.0] * 40], "never": [1.0, 2.0] * 20, "steady": [2.0] * 40}
    for name, repeats, count in (("settles", 9, 10), ("never", 3, 8), ("steady", 9, 2)):
        seconds = iter(rounds[name])
        workers = {"work": lambda seconds=seconds: [next(seconds), next(seconds)]}
        found = decode.in_turn(workers, {"work": {}}, 1, lambda work: work(), repeats)
        assert len(found["work"]) == count, name
