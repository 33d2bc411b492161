"""A clock of speculative decoding under which every run takes as long, so that more tokens per run cost nothing."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from t2r_runtime import Decoder
from t2r_runtime.decode import speculation
from t2r_runtime.decode.pace import Pace, Times


def set_even(monkeypatch: pytest.MonkeyPatch, *decoders: Decoder) -> None:
    """Set the clock; the decoders forget the times of other clocks."""
    ticks = itertools.count()
    for decoder in decoders:
        monkeypatch.setattr(decoder, "run_times", Times())
    monkeypatch.setattr(speculation, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(Pace, "guessed", lambda self, tokens, seconds: None)
