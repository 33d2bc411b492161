"""Run the fuzzer of libt2r for hours: make fuzz HOURS=1, after make test-cpp.

    python runtimes/cpp/tests/fuzz_hours.py --hours 0.5 [--target NAME] [--seed N] [--folder FOLDER] [--keep]

Each target has its share of the time, one process at a time, at the lowest priority. Its files stay in FOLDER
(build/fuzz), where the next run continues. --keep replaces the corpus of the tests by the smallest set of files that
runs the same code. Without --seed, the seed is today's date as a number, 20261130: each night has its own, and a night
can be repeated. It prints a table, and exits with 1 if a file caused a crash, a hang or too much memory.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import fuzz_corpus  # noqa: E402
from cpp_build import CHECKED, ROOT, SANITIZERS, build, clang  # noqa: E402
from fuzz_corpus import LIMITS, TARGETS  # noqa: E402

MOST = 400_000  # bytes of all corpora in the repository
# a file's 20 seconds are too few at the lowest priority, and a slow one is no finding
PATIENT = ("-timeout=600", "-report_slow_units=600", "-print_final_stats=1")
READERS = ("storyteller", "NFKD")  # tokenizers that read texts, each for half of the time


def built() -> Path:
    """The fuzzing program, compiled by clang."""
    options = ["-DT2R_SANITIZE=fuzzer", f"-DCMAKE_CXX_COMPILER={clang()}"]
    return build("fuzzer", *options, *CHECKED, targets=["fuzz"]) / "fuzz"


def main(arguments: Sequence[str] | None = None, program: Path | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--hours", type=float, help="of all targets together")
    length.add_argument("--minutes", type=float)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--seed", type=int, default=int(f"{datetime.date.today():%Y%m%d}"))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--memory", type=int, help="bytes that a file may take, besides four times its size")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(arguments)
    targets = options.target or TARGETS
    seconds = (60 * options.minutes if options.hours is None else 3600 * options.hours) / len(targets)
    program = program or built()
    print(
        f"seed {options.seed}\n\n| target | minutes | executions | files | found |\n|---|---|---|---|---|", flush=True
    )
    found = 0
    for target in targets:
        found += fuzz(program, target, seconds, options)
        if options.keep:
            keep(program, target, options.folder)
    return int(found > 0)


def fuzz(program: Path, target: str, seconds: float, options: argparse.Namespace) -> int:
    """Run one target, print its row of the table, and return the number of findings."""
    corpus, findings = options.folder / target, options.folder / "found"
    if not corpus.exists():
        fuzz_corpus.unpack(target, corpus)
    findings.mkdir(exist_ok=True)
    before, start, executions = len(list(findings.iterdir())), time.monotonic(), 0
    readers = READERS if target == "text" else ("",)
    for reader in readers:
        environment = environment_of(target, options.folder, reader)
        if options.memory is not None:
            environment["T2R_FUZZ_MEMORY"] = str(options.memory)
        limits = [f"-max_total_time={max(1, round(seconds / len(readers)))}", f"-seed={options.seed % (1 << 31)}"]
        places = [f"-artifact_prefix={findings}/{target}-", str(corpus)]
        said = niced([str(program), *limits, *LIMITS, *PATIENT, *places], environment)
        executions += sum(map(int, re.findall(r"^stat::number_of_executed_units: *([0-9]+)", said, re.MULTILINE)))
    count, minutes = len(list(findings.iterdir())) - before, (time.monotonic() - start) / 60
    print(f"| {target} | {minutes:.1f} | {executions:,} | {len(list(corpus.iterdir())):,} | {count} |", flush=True)
    return count


def keep(program: Path, target: str, folder: Path) -> None:
    """Replace the corpus of the tests by a minimal one."""
    minimal = folder / f"{target}-minimal"
    shutil.rmtree(minimal, ignore_errors=True)
    minimal.mkdir()
    environment = environment_of(target, folder, READERS[-1])
    niced([str(program), "-merge=1", *LIMITS, *PATIENT, str(minimal), str(folder / target)], environment)
    fuzz_corpus.pack(target, minimal, MOST // len(TARGETS))


def environment_of(target: str, folder: Path, reader: str) -> dict[str, str]:
    environment = {**os.environ, **SANITIZERS, "T2R_FUZZ": target}
    if target == "text":
        path = folder / f"{reader}.json"
        path.write_text(fuzz_corpus.tokenizer_of(reader), "utf-8")
        environment["T2R_FUZZ_TOKENIZER"] = str(path)
    return environment


def niced(command: list[str], environment: dict[str, str]) -> str:
    """What a program says, run at the lowest priority; a finding ends it, so its exit status is none of ours."""
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    return subprocess.run([*nice, *command], env=environment, capture_output=True, text=True, check=False).stderr


if __name__ == "__main__":
    sys.exit(main())
