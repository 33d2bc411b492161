"""Graphs made of one GGUF file beside llama.cpp on that very file: milliseconds a step by tokens read, and prompts.

    python benchmarks/beside_llama.py MODEL.gguf GRAPH.onnx=SOURCE … [--provider t2r] [--contexts 16,1024,4096,8000]

SOURCE is MODEL.gguf or an adapter of it: each graph is compared with its eager model first, and has no speed if it is
not equal. `--random`, for files of random_gguf.py, compares logits and states but no greedy tokens. Each engine has a
process of its own for each length; all take turns, in another random order each round, and so does a loop that only
reads memory. While the quartiles of a row are more than 5 % of its median apart, the rounds are repeated, up to three
times. `again` repeats the first graph, as a control. Processes that read a prompt of 16 and write 64 tokens show
start-up and peak memory, on Linux. Needs llama-cpp-python, of the extra `peers`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from comparison import runners
from comparison.bandwidth import token_bytes
from comparison.decode import FIRST_PROMPT, in_turn, kept, side_by_side, with_ratios
from comparison.engines import require_parity
from comparison.timing import machine
from comparison.worker import DISCARDED, Worker
from t2r_export.checkpoints import checkpoint
from t2r_export.cli.output import table
from t2r_export.paths import ADAPTERS
from t2r_export.providers.bench import Spread, turns

PARITY = 32  # steps: of fewer, rounding may change more than the share of greedy tokens that verify allows
TOKENS = 20  # per turn
READS = "reads"  # the key of the loop that reads memory
HEAD = ("engine", "median (10 to 90 %)", "of llama.cpp", "peak memory")

Opening = Callable[[int], Worker]  # makes a worker with room for so many tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("graphs", nargs="+", help="GRAPH.onnx=SOURCE")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--provider", default="t2r")
    parser.add_argument("--contexts", default="16,1024,4096,8000")
    parser.add_argument("--prompts", default="512,4096")
    parser.add_argument("--starts", type=int, default=7, help="0 measures none")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    engines: dict[str, tuple[str, Path, Mapping[str, str]]] = {"llama.cpp": ("llama.cpp", options.model, {})}
    for graph, source in (map(Path, pair.split("=")) for pair in options.graphs):
        loaded = checkpoint.load(source, base=options.model if source.suffix == ADAPTERS else None)
        require_parity(loaded, graph, options.provider, greedy=not options.random, steps=PARITY)
        engines[graph.stem] = ("t2r", graph, {"provider": options.provider})
    engines["again"] = list(engines.values())[1]

    def opening(engine: str, path: Path, how: Mapping[str, str]) -> Opening:
        return lambda room: Worker(engine, path, options.threads, room, how)

    openings = {name: opening(*given) for name, given in engines.items()}
    print(machine())
    if options.starts:
        starts({name: (*given, options.threads) for name, given in engines.items()}, options.starts)
    graphs = {name: path for name, (engine, path, _) in engines.items() if engine == "t2r"}
    steps(openings, graphs, list(map(int, options.contexts.split(","))), options.rounds, options.threads)
    for tokens in map(int, filter(None, options.prompts.split(","))):
        prompts(openings, tokens, options.rounds)


def starts(engines: Mapping[str, tuple[str, Path, Mapping[str, str], int]], rounds: int) -> None:
    """Seconds from the start of a process to its first token, and its peak memory; the files are in the page cache."""
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in engines}
    for name in turns(list(engines), rounds):
        engine, path, how, threads = engines[name]
        command = [sys.executable, "-P", runners.__file__, engine, str(path), str(threads), json.dumps(how)]
        before = time.perf_counter()
        first, peak = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        found[name].append((first - before, peak))
    rows: dict[str, dict[str, Any]] = {}
    for name, pairs in found.items():
        seconds, peaks = zip(*pairs, strict=True)
        rows[name] = {"name": name, **asdict(Spread.of(seconds)), "peak": statistics.median(peaks)}
    tokens = f"a prompt of {runners.START_PROMPT} and {runners.START_TOKENS} tokens"
    show(f"Seconds from the start of a process to its first token; memory after {tokens}", with_ratios(rows), HEAD)


def steps(
    openings: Mapping[str, Opening], graphs: Mapping[str, Path], contexts: Sequence[int], rounds: int, threads: int
) -> None:
    """A table for each length; of graphs, with the bytes of weights and states that they move a second."""
    rows: dict[str, dict[str, Any]] = {
        f"{name} after {tokens:,}": {"name": name, "tokens": tokens} for tokens in contexts for name in openings
    }
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker | ReadLoop] = {}
        for key, row in rows.items():
            with kept(row):
                worker = stack.enter_context(openings[row["name"]](row["tokens"] + TOKENS + DISCARDED))
                worker.open()
                worker.place(row["tokens"])
                workers[key] = worker
        workers[READS], rows[READS] = stack.enter_context(ReadLoop(threads)), {}
        seconds = in_turn(workers, rows, rounds, lambda worker: worker.decode(TOKENS), repeats=3)
    reads = Spread.of(seconds.pop(READS)).inverse(ReadLoop.BYTES / 1e9)
    print(f"\nA loop that reads memory: {reads.median:.1f} GB/s ({reads.low:.1f} to {reads.high:.1f})")
    for key, values in seconds.items():
        rows[key] |= asdict(Spread.of(values).scaled(1e3))
        if graph := graphs.get(rows[key]["name"]):
            moved = token_bytes(graph, context=rows[key]["tokens"]).total
            rows[key]["rate"] = f"{moved / 1e6 / rows[key]['median']:.1f} GB/s"
    for tokens in contexts:
        of_length = {key: row for key, row in rows.items() if row.get("tokens") == tokens}
        show(f"Milliseconds a step after {tokens:,} tokens", with_ratios(of_length), (*HEAD[:-1], "bytes a second"))


class ReadLoop:
    """Reads as many bytes as a step of a model does, with `threads` threads, in this process."""

    BYTES = 1 << 27

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(self.BYTES // 4, np.int32), threads)
        self._pool = ThreadPoolExecutor(threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def decode(self, times: int) -> list[float]:
        """Seconds of each of `times` reads."""
        seconds = []
        for _ in range(DISCARDED + times):
            start = time.perf_counter()
            list(self._pool.map(np.max, self._parts))
            seconds.append(time.perf_counter() - start)
        return seconds[DISCARDED:]


def prompts(openings: Mapping[str, Opening], tokens: int, rounds: int) -> None:
    rows = side_by_side(
        {name: functools.partial(opening, tokens + 1) for name, opening in openings.items()},
        lambda worker: worker.read(FIRST_PROMPT),
        rounds,
        lambda worker: [worker.read(tokens)],
        lambda seconds: Spread.of(seconds).inverse(tokens),
    )
    show(f"Tokens a second of a prompt of {tokens:,}", rows)


def show(title: str, rows: Sequence[Mapping[str, Any]], head: Sequence[str] = HEAD[:-1]) -> None:
    """Print a table; an engine that failed has the reason in its row."""
    cells = [
        (
            row["name"],
            f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{row['ratio']:.2f}",
            f"{row['peak'] / 1e6:.0f} MB" if "peak" in row else row.get("rate", ""),
        )
        if "median" in row
        else (row["name"], row["error"], "", "")
        for row in rows
    ]
    print(f"\n{title}\n\n{table([cell[: len(head)] for cell in cells], head)}", flush=True)


if __name__ == "__main__":
    main()
