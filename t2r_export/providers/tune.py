"""Choose session options for a graph on this machine: `t2r bench GRAPH --tune`.

First thread counts are compared, then, at the best count, ONNX Runtime options that affect step time, one at a time.
Each run measures the default setting twice: ratios are to the first, and the difference of the two is the noise that a
gain must exceed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from t2r_export.config.bench import BenchConfig
from t2r_export.providers.bench import GraphFigures, bench_each
from t2r_runtime.session.tuning import usable_cores

LEAST_GAIN = 0.05  # share of the step time; lower bound of the noise
ENTRIES: dict[str, dict[str, str]] = {  # settings other than threads → session configuration entries
    "threads sleep between operators": {"session.intra_op.allow_spinning": "0"},
    "weights as in the file": {"session.disable_prepacking": "1"},
    "parts of four sizes": {"session.dynamic_block_base": "4"},
}
FOR_ONE_THREAD = ("weights as in the file",)


@dataclass(frozen=True)
class Setting:
    """Options of a session; None and {} are the runtime's defaults."""

    name: str
    threads: int | None = None
    session_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of t2r_runtime.Decoder."""
        given: dict[str, Any] = {} if self.threads is None else {"threads": self.threads}
        return given | ({"session_config": dict(self.session_config)} if self.session_config else {})


@dataclass(frozen=True)
class Tried:
    """Figures of one setting; `ratio` is its step time over the default's in the same run."""

    setting: Setting
    figures: GraphFigures

    @property
    def ratio(self) -> float:
        return self.figures.ratio


@dataclass(frozen=True)
class Tuned:
    """All tried settings, and the best: the default unless another gains more than noise."""

    machine: Mapping[str, Any]
    tried: tuple[Tried, ...]
    best: Setting


OWN, AGAIN = Setting("the runtime's own"), Setting("the same again")


def tune(graph: Path, config: BenchConfig, on_progress: Callable[[str], object] = lambda _: None) -> Tuned:
    """Compare settings for a graph in two runs.

    Args:
        config: how to measure; `threads`, unless None, is the only thread count tried.

    Raises:
        UserError: a graph that does not open, or fewer positions than a turn needs.
    """
    counts = thread_counts() if config.threads is None else [config.threads]
    machine, first = _run(graph, config, [Setting(f"threads {count}", count) for count in counts], on_progress)
    chosen = best_of(first)
    _, second = _run(graph, config, around(chosen), on_progress)
    return Tuned(machine, (*first, *second), best_of(second))


def thread_counts() -> list[int]:
    """Powers of two up to the number of usable cores, and that number."""
    cores = usable_cores() or os.cpu_count() or 1
    return sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores})


def around(chosen: Setting) -> list[Setting]:
    """`chosen` alone and with each of ENTRIES; with one thread, only FOR_ONE_THREAD."""
    prefix = "" if chosen is OWN else f"{chosen.name}, "
    names = [name for name in ENTRIES if chosen.threads != 1 or name in FOR_ONE_THREAD]
    return [
        *([] if chosen is OWN else [chosen]),
        *(Setting(prefix + name, chosen.threads, ENTRIES[name]) for name in names),
    ]


def best_of(tried: Sequence[Tried]) -> Setting:
    """The first setting of a run that none beats by more than the noise."""
    noise = max(LEAST_GAIN, abs(1 - next(one.ratio for one in tried if one.setting is AGAIN)))
    others = [one for one in tried if one.setting is not AGAIN]
    fastest = min(one.ratio for one in others)
    return next(one.setting for one in others if one.ratio <= fastest + noise)


def _run(
    graph: Path, config: BenchConfig, settings: Sequence[Setting], on_progress: Callable[[str], object]
) -> tuple[Mapping[str, Any], tuple[Tried, ...]]:
    """Measure the default twice, then `settings`."""
    every = (OWN, AGAIN, *settings)
    opened = [replace(config, threads=s.threads, session_config=s.session_config, starts=0) for s in every]
    found = bench_each([(graph, one) for one in opened], on_progress)
    return found.machine, tuple(Tried(*pair) for pair in zip(every, found.graphs, strict=True))
