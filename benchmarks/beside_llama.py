"""Graphs made of one GGUF file beside llama.cpp on that very file: milliseconds a step by tokens read, and prompts.

    python benchmarks/beside_llama.py MODEL.gguf GRAPH.onnx=SOURCE … [--provider t2r] [--contexts 16,1024,4096,8000]

SOURCE is MODEL.gguf or an adapter of it: each graph is compared with its eager model first, and has no speed if it is
not equal. `--random`, for files of random_gguf.py, compares logits and states but no greedy tokens. Each engine has a
process of its own; at each length all are opened and take turns, in another random order each round. `again` repeats
the first graph, as a control. Needs llama-cpp-python, of the extra `peers`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comparison.decode import FIRST_PROMPT, in_turn, kept, with_ratios
from comparison.engines import require_parity
from comparison.timing import machine
from comparison.worker import DISCARDED, Worker
from t2r_export.checkpoints import checkpoint
from t2r_export.cli.output import table
from t2r_export.paths import ADAPTERS
from t2r_export.providers.bench import Spread

TOKENS = 20  # per turn
HEAD = ("engine", "median (10 to 90 %)", "of llama.cpp", "memory")

Opening = Callable[[int], Worker]  # makes a worker with room for so many tokens
Work = Callable[[Worker], list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("graphs", nargs="+", help="GRAPH.onnx=SOURCE")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--provider", default="t2r")
    parser.add_argument("--contexts", default="16,1024,4096,8000")
    parser.add_argument("--prompts", default="512,4096")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    def opening(engine: str, path: Path, how: Mapping[str, str]) -> Opening:
        return lambda room: Worker(engine, path, options.threads, room, how)

    openings = {"llama.cpp": opening("llama.cpp", options.model, {})}
    for graph, source in (map(Path, pair.split("=")) for pair in options.graphs):
        loaded = checkpoint.load(source, base=options.model if source.suffix == ADAPTERS else None)
        require_parity(loaded, graph, options.provider, greedy=not options.random)
        openings[graph.stem] = opening("t2r", graph, {"provider": options.provider})
    openings["again"] = list(openings.values())[1]
    print(machine())
    for tokens in map(int, options.contexts.split(",")):
        steps(openings, tokens, options.rounds)
    for tokens in map(int, filter(None, options.prompts.split(","))):
        prompts(openings, tokens, options.rounds)


def steps(openings: Mapping[str, Opening], tokens: int, rounds: int) -> None:
    room = tokens + TOKENS + DISCARDED
    rows = side_by_side(
        openings, room, lambda worker: worker.place(tokens), lambda worker: worker.decode(TOKENS), rounds
    )
    show(f"Milliseconds a step after {tokens:,} tokens", rows, lambda seconds: Spread.of(seconds).scaled(1e3))


def prompts(openings: Mapping[str, Opening], tokens: int, rounds: int) -> None:
    room, first = tokens + 1, FIRST_PROMPT
    rows = side_by_side(openings, room, lambda worker: worker.read(first), lambda worker: [worker.read(tokens)], rounds)
    show(f"Tokens a second of a prompt of {tokens:,}", rows, lambda seconds: Spread.of(seconds).inverse(tokens))


def side_by_side(
    openings: Mapping[str, Opening], room: int, prepare: Callable[[Worker], object], work: Work, rounds: int
) -> dict[str, dict[str, Any]]:
    """Rows of all engines, opened and prepared together, then measured in turns; `seconds` holds the times."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in openings}
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, opening in openings.items():
            with kept(rows[name]):
                worker = stack.enter_context(opening(room))
                worker.open()
                prepare(worker)
                workers[name] = worker
        for name, seconds in in_turn(workers, rows, rounds, work).items():
            rows[name] |= {"seconds": seconds, **workers[name].memory()}
    return rows


def show(title: str, rows: dict[str, dict[str, Any]], spread: Callable[[list[float]], Spread]) -> None:
    """Print a table; an engine that failed has the reason in its row."""
    for row in rows.values():
        if seconds := row.pop("seconds", None):
            row |= asdict(spread(seconds))
    with_ratios(rows)
    cells = [
        (name, f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})", f"{row['ratio']:.2f}", megabytes(row))
        if "median" in row
        else (name, row["error"], "", "")
        for name, row in rows.items()
    ]
    print(f"\n{title}\n\n{table(cells, HEAD)}", flush=True)


def megabytes(row: Mapping[str, Any]) -> str:
    return f"{row['resident'] / 1e6:.0f} MB" if "resident" in row else ""


if __name__ == "__main__":
    main()
