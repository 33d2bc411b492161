"""Time per token, prompt speed, memory and start-up of exported graphs, and the memory bandwidth limit.

A speed is a ratio of medians over rounds in which the graphs take turns: the speed of one graph was seen to drift by
tens of per cent over minutes. Each graph has its own process, hence its own memory and threads; one works at a time and
the others sleep. Parity is not checked here: see t2r_export.verify.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from t2r_export.config.bench import BenchConfig, BenchOptions
from t2r_export.providers.bandwidth import Bandwidth, TokenBytes, bandwidth, token_bytes
from t2r_export.providers.subprocess import Worker
from t2r_export.providers.timed import TimedDecoder
from t2r_export.version import __version__
from t2r_runtime.contract.signature import PREFILL, Signature
from t2r_runtime.errors import UserError

T = TypeVar("T")
M = TypeVar("M")
Progress = Callable[[str], object]  # called with a status line before each part

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
SETTLE = 0.1  # seconds between turns: the threads of the previous turn stop spinning
MAIN_MEMORY = ("cpu", "openvino", "xnnpack", "dnnl")  # providers whose weights are in the memory that `bandwidth` reads


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
    memory: int | None  # resident bytes of the process
    start: Spread | None  # seconds from process start to the first token
    token: TokenBytes | None  # memory traffic of a step; None for .ort files and growing states
    limit: float | None  # milliseconds for this traffic at the measured bandwidth
    batch: int
    placement: Mapping[str, int]  # provider → number of nodes

    @property
    def distance(self) -> float | None:
        """Step time divided by the bandwidth limit."""
        return None if self.limit is None else self.milliseconds.median / self.limit


@dataclass(frozen=True)
class Bench:
    """Figures of all graphs, in the given order."""

    machine: Mapping[str, Any]
    config: BenchConfig
    bandwidth: Bandwidth | None  # None if the weights are not in main memory
    graphs: tuple[GraphFigures, ...]


@dataclass
class _Measured:
    """An open graph and its measurements in seconds."""

    worker: Worker
    signature: Signature
    placement: dict[str, int]
    steps: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    prompts_by_steps: list[float] = field(default_factory=list)
    memory: int | None = None


def bench(
    graphs: Sequence[Path], config: BenchConfig = BenchConfig(), on_progress: Progress = lambda line: None
) -> Bench:
    """Measure each graph. A graph named twice shows the noise of the measurement.

    Raises:
        UserError: no graphs, a graph that does not open, or fewer positions than a turn needs.
    """
    if not graphs:
        raise UserError("at least one graph to measure", "none", "name an exported .onnx file")
    return bench_each([(graph, config) for graph in graphs], on_progress)


def bench_each(candidates: Sequence[tuple[Path, BenchConfig]], on_progress: Progress = lambda line: None) -> Bench:
    """`bench` with separate options per graph; rounds, starts and lengths are those of the first."""
    config = candidates[0][1]

    def begin(worker: Worker) -> _Measured:
        found = _Measured(worker, *worker.call("about"))
        _require_decoder(found.signature, config)
        return found

    def first_token(worker: Worker, _: _Measured) -> None:
        worker.call("prompt", 1)

    measured = in_turns(TimedDecoder, candidates, begin, lambda one: _turn(one, config), first_token, on_progress)
    speed = None
    if config.provider in MAIN_MEMORY:
        on_progress("reading memory")
        speed = bandwidth(config.threads or os.cpu_count() or 1)
    first = statistics.median(measured[0][0].steps)
    rows = zip((graph for graph, _ in candidates), measured, strict=True)
    return Bench(machine(), config, speed, tuple(_figures(graph, *one, first, speed, config) for graph, one in rows))


def in_turns(
    kind: type,
    candidates: Sequence[tuple[Path, BenchOptions]],
    begin: Callable[[Worker], M],
    turn: Callable[[M], object],
    first: Callable[[Worker, M], object],
    on_progress: Progress,
) -> list[tuple[M, Spread | None]]:
    """Measure graphs in turns, then the start of their processes; rounds and starts are those of the first candidate.

    Args:
        kind: class in t2r_export.providers.timed that each process creates.
        begin: called once per open process; its result collects the measurements.
        turn: called `rounds` times per graph, in another random order each round.
        first: called in a new process; its start is complete when it returns. Files are in the page cache.

    Returns:
        Per graph, the result of `begin` and its start times in seconds; None without starts.
    """
    config = candidates[0][1]
    with contextlib.ExitStack() as stack:
        on_progress("opening")
        workers = [stack.enter_context(opened(kind, *candidate)) for candidate in candidates]
        found = [begin(worker) for worker in workers]
        for count, number in enumerate(turns(range(len(candidates)), config.rounds)):
            on_progress(f"turn {count + 1} of {config.rounds * len(candidates)}")
            time.sleep(SETTLE)
            turn(found[number])
    starts: list[list[float]] = [[] for _ in candidates]
    for number in turns(range(len(candidates)), config.starts):
        on_progress(f"starting {candidates[number][0]}")
        began = time.perf_counter()
        with opened(kind, *candidates[number]) as worker:
            first(worker, found[number])
            starts[number].append(time.perf_counter() - began)
    return [(one, Spread.of(seconds) if seconds else None) for one, seconds in zip(found, starts, strict=True)]


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


@contextlib.contextmanager
def opened(kind: type, graph: Path, config: BenchOptions) -> Iterator[Worker]:
    """A process with `graph` open in an object of class `kind`; it ends with the context."""
    with contextlib.closing(Worker(kind=kind)) as worker:
        options: dict[str, Any] = {"provider_options": dict(config.provider_options)}
        options["allow_fallback"] = config.allow_fallback
        if config.session_config:
            options["session_config"] = dict(config.session_config)
        worker.call("__init__", graph, config.provider, config.threads, **options)
        yield worker


def _require_decoder(signature: Signature, config: BenchConfig) -> None:
    if signature.source is not None:
        raise UserError("--sentences for a translator", "none", "name a file with --sentences")
    needed, end = config.prompt + config.warmup + config.steps, signature.reach
    if end is not None and needed > end:
        raise UserError(
            f"a prompt, warm-up and steps of at most {end} tokens, where this model's positions end",
            f"{config.prompt} + {config.warmup} + {config.steps}",
            "choose fewer with --prompt, --warmup or --steps",
        )


def _turn(found: _Measured, config: BenchConfig) -> None:
    """Time a prompt from the initial state, then steps."""
    worker = found.worker
    if PREFILL in found.signature.graphs:
        found.prompts_by_steps.append(worker.call("prompt_by_steps", config.prompt))
    found.prompts.append(worker.call("prompt", config.prompt))
    found.steps += worker.call("steps", config.steps, config.warmup)
    found.memory = worker.call("memory")


def _figures(
    graph: Path, found: _Measured, start: Spread | None, first: float, speed: Bandwidth | None, config: BenchConfig
) -> GraphFigures:
    batch, token = found.signature.batch or 1, None
    if graph.suffix != ".ort" and not any(spec.grows for spec in found.signature.states):
        token = token_bytes(graph, batch)
    read = batch * config.prompt
    return GraphFigures(
        graph=graph,
        milliseconds=Spread.of(found.steps).scaled(1e3),
        ratio=statistics.median(found.steps) / first,
        prompt=Spread.of(found.prompts).inverse(read),
        prompt_by_steps=Spread.of(found.prompts_by_steps).inverse(read) if found.prompts_by_steps else None,
        memory=found.memory,
        start=start,
        token=token,
        limit=1e3 * token.floor(speed.bytes_per_second) if token is not None and speed is not None else None,
        batch=batch,
        placement=found.placement,
    )


def _lines(name: str) -> list[str]:
    path = Path(name)
    return path.read_text().splitlines() if path.exists() else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
