"""Run damaged inputs of every kind and print a table of endings.

    python -m tests.fuzz --cases 10000 [--seed S] [--kind NAME] [--jobs N]

10,000 cases take about 40 minutes with `--jobs 2` on two busy cores; the table shows the time of each kind.

A case is its kind, number and seed: `--kind model_data --case 17 --seed S` repeats one case and shows its output.
A run that is interrupted (SIGINT or SIGTERM) prints its table and the `--skip N` that continues it.
Exit 1 if any case was neither refused with a one-line error nor accepted and run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
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
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N cases")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    kinds = [options.kind] if options.kind else list(KINDS)
    chosen = suite.cases(kinds, options.cases, options.seed)[options.skip :]
    if options.case is not None:
        chosen = [suite.Case(kind, options.case, options.seed) for kind in kinds]
    with tempfile.TemporaryDirectory() as name:
        whole = base.make(Path(name))
        found: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        seconds: dict[str, float] = defaultdict(float)
        with multiprocessing.get_context("fork").Pool(options.jobs) as workers, contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # of this process, not of its workers
            for case, ending, took in workers.imap(functools.partial(suite.attempt_one, whole), chosen):
                found[case.kind][ending.kind] += 1
                seconds[case.kind] += took
                if ending.kind in BAD or options.case is not None:
                    print(f"{case.kind} {case.number}: {ending.kind}\n{ending.said}\n", flush=True)
    done = sum(counts.total() for counts in found.values())
    if done < len(chosen):
        print(f"interrupted: continue with --skip {options.skip + done}")
    return show(found, seconds)


def show(found: Mapping[str, Counter[str]], seconds: Mapping[str, float]) -> int:
    total: Counter[str] = sum(found.values(), Counter())
    print("| kind | cases | seconds each |", " | ".join(ENDINGS), "|")
    print("|---|" + "---|" * (len(ENDINGS) + 2))
    spent = {**seconds, "all": sum(seconds.values())}
    for kind, counts in [*found.items(), ("all", total)]:
        each = spent.get(kind, 0) / max(counts.total(), 1)
        print(f"| {kind} | {counts.total()} | {each:.2f} |", " | ".join(str(counts[name]) for name in ENDINGS), "|")
    return int(any(total[ending] for ending in BAD))


if __name__ == "__main__":
    sys.exit(main())
