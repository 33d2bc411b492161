"""Graphs made of one GGUF file beside llama.cpp on that very file: milliseconds a step by tokens read, and prompts.

    python benchmarks/beside_llama.py MODEL.gguf GRAPH.onnx=SOURCE … [--provider t2r] [--contexts 16,1024,4096,8000]

SOURCE is MODEL.gguf or an adapter of it: each graph is compared with its eager model first, and has no speed if it is
not equal. `--random`, for files of random_gguf.py, compares logits and states but no greedy tokens. Each engine has a
process of its own; at each length all are opened and take turns, in another random order each round. `again` repeats
the first graph, as a control. Needs llama-cpp-python, of the extra `peers`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from comparison.decode import FIRST_PROMPT, side_by_side
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
        {name: functools.partial(opening, room) for name, opening in openings.items()},
        lambda worker: worker.place(tokens),
        rounds,
        lambda worker: worker.decode(TOKENS),
        lambda seconds: Spread.of(seconds).scaled(1e3),
    )
    show(f"Milliseconds a step after {tokens:,} tokens", rows)


def prompts(openings: Mapping[str, Opening], tokens: int, rounds: int) -> None:
    rows = side_by_side(
        {name: functools.partial(opening, tokens + 1) for name, opening in openings.items()},
        lambda worker: worker.read(FIRST_PROMPT),
        rounds,
        lambda worker: [worker.read(tokens)],
        lambda seconds: Spread.of(seconds).inverse(tokens),
    )
    show(f"Tokens a second of a prompt of {tokens:,}", rows)


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table; an engine that failed has the reason in its row."""
    cells = [
        (
            row["name"],
            f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
            f"{row['ratio']:.2f}",
            megabytes(row),
        )
        if "median" in row
        else (row["name"], row["error"], "", "")
        for row in rows
    ]
    print(f"\n{title}\n\n{table(cells, HEAD)}", flush=True)


def megabytes(row: Mapping[str, Any]) -> str:
    return f"{row['resident'] / 1e6:.0f} MB" if "resident" in row else ""


if __name__ == "__main__":
    main()
