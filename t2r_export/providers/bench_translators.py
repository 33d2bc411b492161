"""What translators' graphs cost where they run, side by side: sentences and tokens a second, memory and start.

Measured as decoders are, see t2r_export.providers.bench. From tokens to tokens: a tokenizer costs nothing here.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t2r_export.providers import bench
from t2r_export.providers.bench import BenchOptions, Spread, machine, opened, turns
from t2r_export.providers.subprocess import Worker
from t2r_export.providers.timed import TimedTranslator
from t2r_runtime import Beam, Tokenizer
from t2r_runtime.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(BenchOptions):
    """How translators are measured."""

    beam: int = 4  # its width; 1 is greedy
    batch: int = 1  # sentences side by side

    def __post_init__(self) -> None:
        if min(self.beam, self.batch, self.rounds) < 1 or self.starts < 0:
            raise UserError("a beam, a batch and rounds of at least 1", str(self), "correct the counts")


@dataclass(frozen=True)
class TranslatorFigures:
    """What one translator costs; None where there is nothing to measure."""

    graph: Path
    sentences: Spread  # per second
    ratio: float  # of its median to the first graph's
    tokens: int  # of all translations of a turn, their ends among them
    tokens_per_second: float  # median
    memory: int | None  # resident bytes of the process
    start: Spread | None  # seconds from the start of a process to the first sentence's translation
    placement: Mapping[str, int]  # provider → number of the step graph's nodes


@dataclass(frozen=True)
class TranslationBench:
    """Translators side by side, in the order in which they were given."""

    machine: Mapping[str, Any]
    config: TranslationConfig
    count: int  # sentences of a turn
    graphs: tuple[TranslatorFigures, ...]


@dataclass
class _Measured:
    """A translator in its process, and what was measured of it so far."""

    worker: Worker
    placement: Mapping[str, int]
    sources: list[list[int]]
    seconds: list[float] = field(default_factory=list)  # a turn each
    starts: list[float] = field(default_factory=list)
    tokens: int = 0
    memory: int | None = None

    @classmethod
    def of(cls, worker: Worker, sentences: Sequence[str]) -> _Measured:
        signature, placement = worker.call("about")
        sources = Tokenizer.of_source(signature).encode_documents(sentences, special_tokens=True)
        return cls(worker, placement, sources)

    def turn(self, config: TranslationConfig) -> float:
        """Translate everything; the seconds that it took."""
        seconds, self.tokens = self.worker.call("translate", self.sources, Beam(config.beam), config.batch)
        self.memory = self.worker.call("memory")
        return float(seconds)


def bench_translations(
    graphs: Sequence[Path],
    sentences: Sequence[str],
    config: TranslationConfig = TranslationConfig(),
    on_progress: Callable[[str], object] = lambda _: None,
) -> TranslationBench:
    """Measure each graph on the same sentences: all of them once, which does not count, and then in `rounds` turns.

    Args:
        on_progress: called with a line for a person before each part.

    Raises:
        UserError: no graphs or sentences, a graph that does not open, is no translator or has no tokenizer, or a
            sentence that it does not take.
    """
    if not graphs or not sentences:
        received = f"{len(graphs)} and {len(sentences)}"
        raise UserError("at least one graph and one sentence to measure", received, "name a file of each")
    with contextlib.ExitStack() as stack:
        on_progress("opening")
        workers = [stack.enter_context(opened(TimedTranslator, graph, config)) for graph in graphs]
        found = [_Measured.of(worker, sentences) for worker in workers]
        for one in found:
            one.turn(config)
        for count, number in enumerate(turns(range(len(graphs)), config.rounds)):
            on_progress(f"turn {count + 1} of {config.rounds * len(graphs)}")
            time.sleep(bench.SETTLE)
            found[number].seconds.append(found[number].turn(config))
    for number in turns(range(len(graphs)), config.starts):
        on_progress(f"starting {graphs[number]}")
        found[number].starts.append(_start(graphs[number], found[number].sources[:1], config))
    first = statistics.median(found[0].seconds)
    figures = tuple(_figures(graph, one, first) for graph, one in zip(graphs, found, strict=True))
    return TranslationBench(machine(), config, len(sentences), figures)


def _start(graph: Path, sources: Sequence[Sequence[int]], config: TranslationConfig) -> float:
    """Seconds from the start of a process to its first translation; the files are in the page cache."""
    start = time.perf_counter()
    with opened(TimedTranslator, graph, config) as worker:
        worker.call("translate", sources, Beam(config.beam), 1)
        return time.perf_counter() - start


def _figures(graph: Path, found: _Measured, first: float) -> TranslatorFigures:
    median = statistics.median(found.seconds)
    return TranslatorFigures(
        graph=graph,
        sentences=Spread.of(found.seconds).inverse(len(found.sources)),
        ratio=first / median,
        tokens=found.tokens,
        tokens_per_second=found.tokens / median,
        memory=found.memory,
        start=Spread.of(found.starts) if found.starts else None,
        placement=found.placement,
    )
