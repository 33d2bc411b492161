"""Cases by kind, number and seed, and the number of cases per kind."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# each module adds its kinds to the table
from fuzz import generation, gguf_files, growth, packed_folders, python_api, server, training, translators  # noqa: F401
from fuzz.kinds import KINDS
from fuzz.runner import Ending, attempt

# Relative number of cases per kind: fewer for slow kinds, more for kinds with many failure modes. Of 1,501 on two
# busy cores, a case took 0.43 s, one of training_state 1.05 s and of toolchain_api 1.13 s.
WEIGHTS = {
    "generation_settings": 0.5,
    "request_body": 0.5,
    "training_state": 0.5,
    "changed_recipe": 0.25,
    "small_batches": 0.25,
    "toolchain_api": 0.5,
    "runtime_api": 2.0,
    "arguments": 2.0,
}


@dataclass(frozen=True)
class Case:
    """A case as `--kind` and `--case` identify it."""

    kind: str
    number: int
    seed: int


def cases(kinds: Sequence[str], count: int, seed: int) -> list[Case]:
    """About `count` cases, weighted by kind, at least one per kind, interleaved."""
    weights = {kind: WEIGHTS.get(kind, 1.0) for kind in kinds}
    each = count / sum(weights.values())
    made = [
        (number / weight, Case(kind, number, seed))
        for kind, weight in weights.items()
        for number in range(max(1, round(each * weight)))
    ]
    return [case for _, case in sorted(made, key=lambda pair: pair[0])]


def attempt_one(whole: Path, case: Case) -> tuple[Case, Ending, float]:
    """The case, its ending, and its seconds."""
    chance, started = random.Random(f"{case.kind} {case.number} {case.seed}"), time.monotonic()
    ending = attempt(functools.partial(_case, whole, case.kind, chance))
    return case, ending, time.monotonic() - started


def _case(whole: Path, kind: str, chance: random.Random, here: Path) -> str:
    return KINDS[kind](whole, here, chance)
