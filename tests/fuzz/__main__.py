"""Damage of every kind, and a table of what came of it.

    python -m tests.fuzz --cases 10000 [--seed S] [--kind NAME]

A case is its kind and its number: `--kind model_data --case 17` runs that one again and shows what it said. Exit 1
where anything ended otherwise than refused in a line, or accepted and run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]
os.environ["OMP_NUM_THREADS"] = "1"

from fuzz import base, suite  # noqa: E402
from fuzz.kinds import KINDS  # noqa: E402
from fuzz.runner import BAD, ENDINGS  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--case", type=int)
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(KINDS)
    with tempfile.TemporaryDirectory() as name:
        whole = base.make(Path(name))
        found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        for kind, number in cases(kinds, options.cases, options.case):
            ending = suite.attempt_one(whole, kind, number, options.seed)
            found[kind][ending.kind] += 1
            if ending.kind in BAD or options.case is not None:
                print(f"{kind} {number}: {ending.kind}\n{ending.said}\n", flush=True)
    return show(found)


def cases(kinds: list[str], count: int, one: int | None) -> Iterator[tuple[str, int]]:
    """The kinds in turn."""
    if one is not None:
        yield from ((kind, one) for kind in kinds)
    else:
        yield from ((kinds[n % len(kinds)], n // len(kinds)) for n in range(count))


def show(found: dict[str, Counter[str]]) -> int:
    total: Counter[str] = sum(found.values(), Counter())
    print("| kind | cases |", " | ".join(ENDINGS), "|")
    print("|---|" + "---|" * (len(ENDINGS) + 1))
    for kind, counts in [*found.items(), ("all", total)]:
        print(f"| {kind} | {counts.total()} |", " | ".join(str(counts[ending]) for ending in ENDINGS), "|")
    return int(any(total[ending] for ending in BAD))


if __name__ == "__main__":
    sys.exit(main())
