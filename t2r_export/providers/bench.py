"""What exported graphs cost where they run: time per token, prompts, memory, start-up, and the bandwidth limit.

A speed is a ratio of medians, from rounds that alternate between the graphs in one run, since the same graph was seen
to drift by tens of per cent over minutes. Each graph has a process of its own, so that memory and threads are its own;
one at a time works, and the others sleep. Whether a graph is the model that it should be is for t2r_export.verify.
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

from t2r_export.providers.bandwidth import Bandwidth, TokenBytes, bandwidth, token_bytes
from t2r_export.providers.subprocess import Worker
from t2r_export.providers.timed import TimedDecoder
from t2r_export.version import __version__
from t2r_runtime.contract.signature import PREFILL, Signature
from t2r_runtime.errors import UserError

T = TypeVar("T")

PACKAGES = ("torch", "onnx", "onnxruntime", "numpy")
SETTLE = 0.1  # seconds between turns: the threads of the last one stop spinning
MAIN_MEMORY = ("cpu", "openvino", "xnnpack", "dnnl")  # providers whose weights lie where `bandwidth` reads


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


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How often graphs have a turn, and where they run."""

    rounds: int = 5
    starts: int = 3  # processes started per graph to time the first token, or sentence
    threads: int | None = None
    provider: str = "cpu"
    provider_options: Mapping[str, str] = field(default_factory=dict)
    allow_fallback: bool = False
    session_config: Mapping[str, str] = field(default_factory=dict)  # ONNX Runtime's


@dataclass(frozen=True, kw_only=True)
class BenchConfig(BenchOptions):
    """How graphs are measured."""

    steps: int = 50  # timed steps per round
    warmup: int = 5  # steps before them that do not count
    prompt: int = 128  # tokens of the prompt that they follow

    def __post_init__(self) -> None:
        if min(self.steps, self.prompt, self.rounds) < 1 or min(self.warmup, self.starts) < 0:
            raise UserError("at least one step, prompt token and round", str(self), "correct the counts")


@dataclass(frozen=True)
class GraphFigures:
    """What one graph costs; None where there is nothing to measure."""

    graph: Path
    milliseconds: Spread  # per step: one token of each sequence
    ratio: float  # of its median to the first graph's
    prompt: Spread  # prompt tokens per second, of all sequences together, as a program reads one
    prompt_by_steps: Spread | None  # the same without the prefill graph, where there is one
    memory: int | None  # resident bytes of the process
    start: Spread | None  # seconds from the start of a process to the first token
    token: TokenBytes | None  # that a step must read and write; None for .ort files and states that grow
    limit: float | None  # milliseconds that the machine's memory takes for those bytes
    batch: int
    placement: Mapping[str, int]  # provider → number of nodes

    @property
    def distance(self) -> float | None:
        """How many times the bandwidth limit a step takes."""
        return None if self.limit is None else self.milliseconds.median / self.limit


@dataclass(frozen=True)
class Bench:
    """Graphs side by side, in the order in which they were given."""

    machine: Mapping[str, Any]
    config: BenchConfig
    bandwidth: Bandwidth | None  # None where weights do not lie in main memory
    graphs: tuple[GraphFigures, ...]


@dataclass
class _Seconds:
    """What was measured of one graph so far."""

    steps: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    prompts_by_steps: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    memory: int | None = None


def bench(
    graphs: Sequence[Path], config: BenchConfig = BenchConfig(), on_progress: Callable[[str], object] = lambda _: None
) -> Bench:
    """Measure each graph; the same one twice shows how far two measurements of one thing differ.

    Args:
        on_progress: called with a line for a person before each part.

    Raises:
        UserError: no graphs, one that does not open, or fewer positions than a turn needs.
    """
    if not graphs:
        raise UserError("at least one graph to measure", "none", "name an exported .onnx file")
    return bench_each([(graph, config) for graph in graphs], on_progress)


def bench_each(
    candidates: Sequence[tuple[Path, BenchConfig]], on_progress: Callable[[str], object] = lambda _: None
) -> Bench:
    """`bench`, where every graph is opened in its own way; rounds, starts and lengths are those of the first."""
    config = candidates[0][1]
    found = [_Seconds() for _ in candidates]
    with contextlib.ExitStack() as stack:
        on_progress("opening")
        workers = [stack.enter_context(opened(TimedDecoder, *candidate)) for candidate in candidates]
        about: list[tuple[Signature, dict[str, int]]] = [worker.call("about") for worker in workers]
        for signature, _ in about:
            _require_decoder(signature, config)
        for count, number in enumerate(turns(range(len(candidates)), config.rounds)):
            on_progress(f"turn {count + 1} of {config.rounds * len(candidates)}")
            time.sleep(SETTLE)
            _turn(workers[number], about[number][0], config, found[number])
    for number in turns(range(len(candidates)), config.starts):
        on_progress(f"starting {candidates[number][0]}")
        found[number].starts.append(_start(*candidates[number]))
    speed = None
    if config.provider in MAIN_MEMORY:
        on_progress("reading memory")
        speed = bandwidth(config.threads or os.cpu_count() or 1)
    first = statistics.median(found[0].steps)
    rows = zip((graph for graph, _ in candidates), about, found, strict=True)
    return Bench(machine(), config, speed, tuple(_figures(*row, first, speed, config) for row in rows))


def turns(names: Sequence[T], rounds: int) -> list[T]:
    """Every name once per round, in another random order each round."""
    order = np.random.default_rng(0)
    return [names[i] for _ in range(rounds) for i in order.permutation(len(names))]


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """What a figure needs beside it to mean something; the versions of `packages` are None where one is missing."""
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
    """A process with the graph in a `kind` of t2r_export.providers.timed, which ends with the context."""
    with contextlib.closing(Worker(kind=kind)) as worker:
        options: dict[str, Any] = {"provider_options": dict(config.provider_options)}
        options["allow_fallback"] = config.allow_fallback
        if config.session_config:
            options["session_config"] = dict(config.session_config)
        worker.call("__init__", graph, config.provider, config.threads, **options)
        yield worker


def _require_decoder(signature: Signature, config: BenchConfig) -> None:
    if signature.source is not None:
        raise UserError("sentences, for a translator", "none", "name a file with --sentences")
    needed, end = config.prompt + config.warmup + config.steps, signature.reach
    if end is not None and needed > end:
        raise UserError(
            f"a prompt, warm-up and steps of at most {end} tokens, where this model's positions end",
            f"{config.prompt} + {config.warmup} + {config.steps}",
            "choose fewer with --prompt, --warmup or --steps",
        )


def _turn(worker: Worker, signature: Signature, config: BenchConfig, found: _Seconds) -> None:
    """A prompt and the steps behind it, from the start of a text."""
    if PREFILL in signature.graphs:
        found.prompts_by_steps.append(worker.call("prompt_by_steps", config.prompt))
    found.prompts.append(worker.call("prompt", config.prompt))
    found.steps += worker.call("steps", config.steps, config.warmup)
    found.memory = worker.call("memory")


def _start(graph: Path, config: BenchConfig) -> float:
    """Seconds from the start of a process to its first token; the files are in the page cache."""
    start = time.perf_counter()
    with opened(TimedDecoder, graph, config) as worker:
        worker.call("prompt", 1)
        return time.perf_counter() - start


def _figures(
    graph: Path,
    about: tuple[Signature, dict[str, int]],
    found: _Seconds,
    first: float,
    speed: Bandwidth | None,
    config: BenchConfig,
) -> GraphFigures:
    signature, placement = about
    batch = signature.batch or 1
    token = None
    if graph.suffix != ".ort" and not any(spec.grows for spec in signature.states):
        token = token_bytes(graph, batch)
    read = batch * config.prompt
    return GraphFigures(
        graph=graph,
        milliseconds=Spread.of(found.steps).scaled(1e3),
        ratio=statistics.median(found.steps) / first,
        prompt=Spread.of(found.prompts).inverse(read),
        prompt_by_steps=Spread.of(found.prompts_by_steps).inverse(read) if found.prompts_by_steps else None,
        memory=found.memory,
        start=Spread.of(found.starts) if found.starts else None,
        token=token,
        limit=1e3 * token.floor(speed.bytes_per_second) if token is not None and speed is not None else None,
        batch=batch,
        placement=placement,
    )


def _lines(name: str) -> list[str]:
    path = Path(name)
    return path.read_text().splitlines() if path.exists() else []


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
