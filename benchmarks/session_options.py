"""Milliseconds per step of one graph with several thread counts and session options of ONNX Runtime, in turns.

    python benchmarks/session_options.py GRAPH [--rounds N]

The runtime's default is measured twice: the difference between the two is noise.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from comparison.tables import Table
from t2r_export.providers.bench import SETTLE, Spread, turns
from t2r_export.providers.timed import TimedDecoder
from t2r_runtime.session.tuning import usable_cores

ENTRIES = {
    "threads sleep between operators": {"session.intra_op.allow_spinning": "0"},
    "weights as in the file": {"session.disable_prepacking": "1"},
    "parts of four sizes": {"session.dynamic_block_base": "4"},
}


def settings(cores: int) -> dict[str, dict[str, Any]]:
    """Arguments of a Decoder: the default twice, powers of two of threads, and session options with all cores."""
    counts = sorted({1 << power for power in range(cores.bit_length())} | {cores})
    every = {f"{count} threads": {"threads": count} for count in counts}
    entries = {name: {"threads": cores, "session_config": entry} for name, entry in ENTRIES.items()}
    return {"default": {}, "default again": {}, **every, **entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    chosen = settings(usable_cores() or os.cpu_count() or 1)
    decoders = {name: TimedDecoder(options.graph, **arguments) for name, arguments in chosen.items()}
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    for name in turns(list(decoders), options.rounds):
        time.sleep(SETTLE)
        decoders[name].prompt(1)
        seconds[name] += decoders[name].steps(50, warmup=5)
    spreads = {name: Spread.of(values).scaled(1e3) for name, values in seconds.items()}
    rows = [[name, f"{one.median:.3g} ({one.low:.3g}-{one.high:.3g})"] for name, one in spreads.items()]
    print(Table("", ["setting", "ms per step"], rows).markdown())


if __name__ == "__main__":
    main()
