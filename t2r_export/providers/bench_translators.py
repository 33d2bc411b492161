"""Sentences and tokens per second, memory and start-up of exported translators.

Graphs take turns as in t2r_export.providers.bench. Tokenization is not timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t2r_export.config.bench import TranslationConfig
from t2r_export.providers.bench import Progress, Spread, in_turns, machine
from t2r_export.providers.subprocess import Worker
from t2r_export.providers.timed import TimedTranslator
from t2r_runtime import Beam, Tokenizer
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class TranslatorFigures:
    """Measurements of one translator; None where not available."""

    graph: Path
    sentences: Spread  # per second
    ratio: float  # its median over the first graph's
    tokens: int  # in all translations of a turn, including end tokens
    tokens_per_second: float  # median
    memory: int | None  # resident bytes of the process
    start: Spread | None  # seconds from process start to the first translation
    placement: Mapping[str, int]  # provider → number of nodes of the step graph


@dataclass(frozen=True)
class TranslationBench:
    """Figures of all translators, in the given order."""

    machine: Mapping[str, Any]
    config: TranslationConfig
    count: int  # sentences per turn
    graphs: tuple[TranslatorFigures, ...]


@dataclass
class _Measured:
    """An open translator and its measurements."""

    worker: Worker
    placement: Mapping[str, int]
    sources: list[list[int]]
    seconds: list[float] = field(default_factory=list)  # per turn
    tokens: int = 0
    memory: int | None = None


def bench_translations(
    graphs: Sequence[Path],
    sentences: Sequence[str],
    config: TranslationConfig = TranslationConfig(),
    on_progress: Progress = lambda line: None,
) -> TranslationBench:
    """Translate all sentences with each graph: once as a warm-up, then in `rounds` timed turns.

    Raises:
        UserError: no graphs or sentences, a graph that does not open, is no translator or has no tokenizer, or a
            sentence outside its limits.
    """
    if not graphs or not sentences:
        received = f"{len(graphs)} and {len(sentences)}"
        raise UserError("at least one graph and one sentence to measure", received, "name a file of each")

    def begin(worker: Worker) -> _Measured:
        signature, placement = worker.call("about")
        sources = Tokenizer.of_source(signature).encode_documents(sentences, special_tokens=True)
        found = _Measured(worker, placement, sources)
        turn(found)
        found.seconds.clear()
        return found

    def turn(found: _Measured) -> None:
        seconds, found.tokens = found.worker.call("translate", found.sources, Beam(config.beam), config.batch)
        found.seconds.append(seconds)
        found.memory = found.worker.call("memory")

    def first(worker: Worker, found: _Measured) -> None:
        worker.call("translate", found.sources[:1], Beam(config.beam), 1)

    measured = in_turns(TimedTranslator, [(graph, config) for graph in graphs], begin, turn, first, on_progress)
    reference = statistics.median(measured[0][0].seconds)
    figures = tuple(_figures(graph, *one, reference) for graph, one in zip(graphs, measured, strict=True))
    return TranslationBench(machine(), config, len(sentences), figures)


def _figures(graph: Path, found: _Measured, start: Spread | None, reference: float) -> TranslatorFigures:
    median = statistics.median(found.seconds)
    return TranslatorFigures(
        graph=graph,
        sentences=Spread.of(found.seconds).inverse(len(found.sources)),
        ratio=reference / median,
        tokens=found.tokens,
        tokens_per_second=found.tokens / median,
        memory=found.memory,
        start=start,
        placement=found.placement,
    )
