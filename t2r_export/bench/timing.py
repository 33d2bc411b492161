"""What every measurement shares: the machine's description, spreads, turns, and processes timed whole."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from t2r_export import __version__
from t2r_runtime.errors import CheckFailed

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
PEER_PACKAGES = ("onnxruntime-genai", "llama-cpp-python", "gguf")


@dataclass(frozen=True)
class Spread:
    """Median and 10th and 90th percentile of what was measured."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        low, high = np.percentile(values, [10, 90])
        return cls(statistics.median(values), float(low), float(high), len(values))

    def scaled(self, scale: float) -> Spread:
        return Spread(self.median * scale, self.low * scale, self.high * scale, self.count)

    def inverse(self, scale: float = 1.0) -> Spread:
        """Of scale / value: a rate out of a time."""
        return Spread(scale / self.median, scale / self.high, scale / self.low, self.count)


@dataclass(frozen=True)
class StepFigures:
    """Step times of one candidate."""

    name: str
    milliseconds: float  # median
    low: float  # 10th percentile
    high: float  # 90th percentile
    ratio: float  # to the first candidate's median


def machine() -> dict[str, Any]:
    """What a figure needs beside it to mean something."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": model or platform.processor() or "unknown",
        "cores": os.cpu_count(),
        "memory_bytes": 1024 * memory or None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "t2r-export": __version__,
        **{name: _version(name) for name in (*PACKAGES, *PEER_PACKAGES)},
    }


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    calls: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> list[StepFigures]:
    """Time the candidates in turn, in another random order each round; the first call of a turn does not count.

    Returns:
        Median and spread of all counted calls, and the ratio of medians to the first candidate.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for name in turns(list(candidates), rounds):
        candidates[name]()
        for _ in range(calls):
            start = clock()
            candidates[name]()
            times[name].append(1e3 * (clock() - start))
    spreads = {name: Spread.of(values) for name, values in times.items()}
    base = next(iter(spreads.values())).median
    return [StepFigures(name, s.median, s.low, s.high, s.median / base) for name, s in spreads.items()]


def turns(names: Sequence[str], rounds: int) -> list[str]:
    """Every name once a round, in another random order each round."""
    order = np.random.default_rng(0)
    return [str(name) for _ in range(rounds) for name in order.permutation(list(names))]


def run(command: Sequence[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a process that must succeed; what it prints is thrown away.

    Raises:
        CheckFailed: it did not; quotes its status.
    """
    watcher = [sys.executable, "-I", str(Path(__file__).with_name("watch.py")), *command]
    answer = subprocess.run(watcher, stdout=subprocess.PIPE, check=True).stdout
    seconds, peak, status = answer.split()
    if int(status) != 0:
        raise CheckFailed(f"{' '.join(command)} ended with status {int(status)}")
    return float(seconds), int(peak)


def _lines(name: str) -> list[str]:
    path = Path(name)
    return path.read_text().splitlines() if path.exists() else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
