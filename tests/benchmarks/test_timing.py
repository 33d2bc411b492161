"""Timing of whole processes."""

import os
import sys

import pytest

from comparison import timing
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
