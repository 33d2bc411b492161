"""Time per token, prompt speed, memory and start-up of exported graphs.

A speed is a ratio of medians over rounds in which the graphs take turns: the speed of one graph was seen to drift by
tens of per cent over minutes. Memory and start are those of new processes. Parity is not checked here: see
t2r_export.verify.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from t2r_export.config.bench import BenchConfig
from t2r_export.providers.timed import TimedDecoder
from t2r_export.python import run
from t2r_export.version import __version__
from t2r_runtime.contract.signature import PREFILL, Signature
from t2r_runtime.errors import UserError, printable

T = TypeVar("T")
Progress = Callable[[str], object]  # called with a status line before each part

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
SETTLE = 0.1  # seconds between turns: the threads of the previous turn stop spinning


@dataclass(frozen=True)
class Spread:
    """Median, 10th and 90th percentile of `count` measurements."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summary of at least one value."""
        low, high = np.percentile(values, [10, 90])
        return cls(statistics.median(values), float(low), float(high), len(values))

    def scaled(self, scale: float) -> Spread:
        return Spread(self.median * scale, self.low * scale, self.high * scale, self.count)

    def inverse(self, scale: float = 1.0) -> Spread:
        """Spread of scale / value: converts times to rates."""
        return Spread(scale / self.median, scale / self.high, scale / self.low, self.count)


@dataclass(frozen=True)
class GraphFigures:
    """Measurements of one graph; None where not available."""

    graph: Path
    milliseconds: Spread  # per step: one token of each sequence
    ratio: float  # its median over the first graph's
    prompt: Spread  # prompt tokens per second over all sequences, with the prefill graph if there is one
    prompt_by_steps: Spread | None  # the same with the step graph; None without a prefill graph
    memory: int | None  # resident bytes of a process after its first token; the largest of all starts
    start: Spread | None  # seconds from process start to its end, after the first token; None without starts
    batch: int
    placement: Mapping[str, int]  # provider → number of nodes


@dataclass(frozen=True)
class Bench:
    """Figures of all graphs, in the given order."""

    machine: Mapping[str, Any]
    config: BenchConfig
    graphs: tuple[GraphFigures, ...]


@dataclass
class _Measured:
    """An open graph and its measurements in seconds, and in bytes of memory."""

    graph: Path
    timed: TimedDecoder
    steps: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    prompts_by_steps: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    memory: list[int | None] = field(default_factory=list)


def bench(
    graphs: Sequence[Path], config: BenchConfig = BenchConfig(), on_progress: Progress = lambda line: None
) -> Bench:
    """Measure each graph. A graph named twice shows the noise of the measurement.

    Raises:
        UserError: no graphs, a graph that does not open, a translator, or fewer positions than a turn needs.
    """
    if not graphs:
        raise UserError("at least one graph to measure", "none", "name an exported .onnx file")
    on_progress("opening")
    options = _options(config)
    found = [_Measured(graph, TimedDecoder(graph, **options)) for graph in graphs]
    for one in found:
        _require_decoder(one.timed.decoder.signature, config)
    for count, one in enumerate(turns(found, config.rounds)):
        on_progress(f"turn {count + 1} of {config.rounds * len(found)}")
        time.sleep(SETTLE)
        _turn(one, config)
    for one in turns(found, config.starts):
        on_progress(f"starting {one.graph}")
        _start(one, options)
    first = statistics.median(found[0].steps)
    return Bench(machine(), config, tuple(_figures(one, first, config) for one in found))


def _options(config: BenchConfig) -> dict[str, Any]:
    """Arguments of a Decoder."""
    return {
        "provider": config.provider,
        "threads": config.threads,
        "provider_options": dict(config.provider_options),
        "allow_fallback": config.allow_fallback,
    }


def turns(names: Sequence[T], rounds: int) -> list[T]:
    """Every name once per round, in another random order each round."""
    order = np.random.default_rng(0)
    return [names[i] for _ in range(rounds) for i in order.permutation(len(names))]


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Processor, memory, system and versions of `packages`; None for a missing package."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": model or platform.processor() or "unknown",
        "cores": os.cpu_count(),
        "memory_bytes": 1024 * memory or None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "t2r-export": __version__,
        **{name: _version(name) for name in packages},
    }


def _require_decoder(signature: Signature, config: BenchConfig) -> None:
    if signature.source is not None:
        raise UserError("the graph of a decoder", "a translator's", "time t2r translate on sentences")
    needed, end = config.prompt + config.warmup + config.steps, signature.reach
    if end is not None and needed > end:
        raise UserError(
            f"a prompt, warm-up and steps of at most {end} tokens, where this model's positions end",
            f"{config.prompt} + {config.warmup} + {config.steps}",
            "choose smaller values of prompt and steps in --measure",
        )


def _turn(found: _Measured, config: BenchConfig) -> None:
    """Time a prompt from the initial state, then steps."""
    timed = found.timed
    if PREFILL in timed.decoder.signature.graphs:
        found.prompts_by_steps.append(timed.prompt_by_steps(config.prompt))
    found.prompts.append(timed.prompt(config.prompt))
    found.steps += timed.steps(config.steps, config.warmup)


def _start(found: _Measured, options: Mapping[str, Any]) -> None:
    """Time a process that opens the graph, whose file is in the page cache, and chooses one token."""
    began = time.perf_counter()
    code, out, err = run("-m", "t2r_export.providers.timed", str(found.graph.absolute()), json.dumps(options))
    found.starts.append(time.perf_counter() - began)
    if code != 0:
        received = printable(err.strip().rpartition("\n")[2]) or f"exit code {code}"
        raise UserError(f"a process that opens {found.graph}", received, "see docs/providers.md")
    found.memory.append(json.loads(out.rpartition("\n")[2]))


def _figures(found: _Measured, first: float, config: BenchConfig) -> GraphFigures:
    decoder = found.timed.decoder
    batch = decoder.signature.batch or 1
    read = batch * config.prompt
    return GraphFigures(
        graph=found.graph,
        milliseconds=Spread.of(found.steps).scaled(1e3),
        ratio=statistics.median(found.steps) / first,
        prompt=Spread.of(found.prompts).inverse(read),
        prompt_by_steps=Spread.of(found.prompts_by_steps).inverse(read) if found.prompts_by_steps else None,
        memory=max((size for size in found.memory if size is not None), default=None),
        start=Spread.of(found.starts) if found.starts else None,
        batch=batch,
        placement=decoder.placement,
    )


def _lines(name: str) -> list[str]:
    path = Path(name)
    return path.read_text().splitlines() if path.exists() else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
