"""A case by its kind, its number and a seed."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from fuzz.kinds import KINDS
from fuzz.runner import Ending, attempt


def attempt_one(whole: Path, kind: str, number: int, seed: int) -> Ending:
    chance = random.Random(f"{kind} {number} {seed}")
    return attempt(functools.partial(_case, whole, kind, chance))


def _case(whole: Path, kind: str, chance: random.Random, here: Path) -> str:
    return KINDS[kind](whole, here, chance)
