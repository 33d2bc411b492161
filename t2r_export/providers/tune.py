"""Which session options suit a graph on this machine: `t2r bench GRAPH --tune`.

First numbers of threads, then, with the best of them, the settings of ONNX Runtime that change what a step costs, one
at a time. Every run has the runtime's own choice in it twice: ratios are to the first of the two, and a setting is
worth taking where it gains more than those two differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from t2r_export.providers.bench import BenchConfig, GraphFigures, bench_each
from t2r_runtime.session.tuning import usable_cores

LEAST_GAIN = 0.05  # of a step's time; also where the same setting differs from itself by less
ENTRIES: dict[str, dict[str, str]] = {  # what is tried beside threads, and its entry of the session's configuration
    "threads sleep between operators": {"session.intra_op.allow_spinning": "0"},
    "weights as in the file": {"session.disable_prepacking": "1"},
    "parts of four sizes": {"session.dynamic_block_base": "4"},
}
FOR_ONE_THREAD = ("weights as in the file",)


@dataclass(frozen=True)
class Setting:
    """How a session is opened; what is left out is the runtime's own choice."""

    name: str
    threads: int | None = None
    session_config: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """What t2r_runtime.Decoder is given for it."""
        given: dict[str, Any] = {} if self.threads is None else {"threads": self.threads}
        return given | ({"session_config": dict(self.session_config)} if self.session_config else {})


@dataclass(frozen=True)
class Tried:
    """What a setting costs, and the ratio of its step to that of the runtime's own choice in the same run."""

    setting: Setting
    figures: GraphFigures

    @property
    def ratio(self) -> float:
        return self.figures.ratio


@dataclass(frozen=True)
class Tuned:
    """All settings that were tried, and the one to take: the runtime's own where no other gains more than noise."""

    machine: Mapping[str, Any]
    tried: tuple[Tried, ...]
    best: Setting


OWN, AGAIN = Setting("the runtime's own"), Setting("the same again")


def tune(graph: Path, config: BenchConfig, on_progress: Callable[[str], object] = lambda _: None) -> Tuned:
    """Try settings on a graph, in two runs whose settings take turns.

    Args:
        config: where and how long; its `threads` are the only number tried, if it has one.

    Raises:
        UserError: a graph that does not open, or fewer positions than a turn needs.
    """
    counts = thread_counts() if config.threads is None else [config.threads]
    machine, first = _run(graph, config, [_threads(count) for count in counts], on_progress)
    chosen = best_of(first)
    _, second = _run(graph, config, around(chosen), on_progress)
    return Tuned(machine, (*first, *second), best_of(second))


def thread_counts() -> list[int]:
    """1, 2, 4 and so on, and all the cores that this process may use."""
    cores = usable_cores() or os.cpu_count() or 1
    return sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores})


def around(chosen: Setting) -> list[Setting]:
    """A number of threads alone, and with each of ENTRIES; one thread waits for nobody."""
    prefix = "" if chosen is OWN else f"{chosen.name}, "
    names = [name for name in ENTRIES if chosen.threads != 1 or name in FOR_ONE_THREAD]
    return [
        *([] if chosen is OWN else [chosen]),
        *(Setting(prefix + name, chosen.threads, ENTRIES[name]) for name in names),
    ]


def best_of(tried: Sequence[Tried]) -> Setting:
    """The first of a run, in the order of `tried`, that no other beats by more than noise."""
    noise = max(LEAST_GAIN, abs(1 - next(one.ratio for one in tried if one.setting is AGAIN)))
    others = [one for one in tried if one.setting is not AGAIN]
    fastest = min(one.ratio for one in others)
    return next(one.setting for one in others if one.ratio <= fastest + noise)


def _threads(count: int) -> Setting:
    return Setting(f"threads {count}", count)


def _run(
    graph: Path, config: BenchConfig, settings: Sequence[Setting], on_progress: Callable[[str], object]
) -> tuple[Mapping[str, Any], tuple[Tried, ...]]:
    """The settings beside the runtime's own choice, twice."""
    every = (OWN, AGAIN, *settings)
    opened = [replace(config, threads=s.threads, session_config=s.session_config, starts=0) for s in every]
    found = bench_each([(graph, one) for one in opened], on_progress)
    return found.machine, tuple(Tried(*pair) for pair in zip(every, found.graphs, strict=True))
