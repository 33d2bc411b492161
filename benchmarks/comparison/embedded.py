"""One graph in every language's runtime: ms a step beside the bare library, and texts into tokens.

Every program is a process of its own, of the table in comparison/programs.py. All of one model and number of threads
are opened, and first say the same greedy tokens, or get no speed; then they work in turn, in another order each round.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison.asked import Asked, asked
from comparison.decode import kept, with_ratios
from t2r_export.providers.bench import SETTLE, Spread, turns
from t2r_runtime.errors import UserError

Note = Callable[[str], object]
Command = Callable[[], Sequence[str]]  # raises UserError where there is no such program here


@dataclass(frozen=True, kw_only=True)
class Often:
    """How often programs have a turn."""

    rounds: int = 5
    turns: int = 10  # of a round
    checked: int = 32  # numbers that must be the same


QUICK = Often(rounds=1, turns=5, checked=8)


def side_by_side(
    about: Mapping[str, Any], programs: Mapping[str, Command], expected: str, often: Often, note: Note
) -> list[dict[str, Any]]:
    """Rows of milliseconds a turn, with the ratio to the first; a program that fails has the reason in its row.

    Args:
        about: what each row says of the setting.
        programs: the command of each by its name.
        expected: the one whose numbers are right.
    """
    rows: dict[str, dict[str, Any]] = {name: {"name": name, **about} for name in programs}
    milliseconds: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        opened: dict[str, Asked] = {}
        for name, command in programs.items():
            with _noted(rows[name], note):
                opened[name] = stack.enter_context(asked(name, command()))
        right = opened[expected].check(often.checked) if expected in opened else []
        for name, program in opened.items():
            with _noted(rows[name], note):
                require_same(program.check(often.checked), right)
                milliseconds[name] = []
        for name in turns(list(milliseconds), often.rounds):
            if "error" not in rows[name]:
                time.sleep(SETTLE)
                with _noted(rows[name], note):
                    milliseconds[name] += opened[name].time(often.turns)
    for name, found in milliseconds.items():
        if "error" not in rows[name]:
            rows[name] |= asdict(Spread.of(found))
    return with_ratios(rows)


def require_same(found: Sequence[int], right: Sequence[int]) -> None:
    """Refuse a speed to a program that computes something else.

    Raises:
        UserError: names the place of the first other number.
    """
    if list(found) != list(right) or not right:
        at = next((n for n, pair in enumerate(zip(found, right, strict=False)) if pair[0] != pair[1]), len(right))
        raise UserError("the numbers of the others", f"another at {at}", "find out which is wrong: there is no speed")


def encoding(text: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of milliseconds for a whole text as megabytes a second."""
    size = text.stat().st_size / 1e3
    found = []
    for row in rows:
        if "median" in row:
            spread = Spread(*(row[key] for key in ("median", "low", "high", "count"))).inverse(size)
            row = {**row, **asdict(spread), "ratio": 1 / row["ratio"]}
        found.append(dict(row))
    return found


@contextlib.contextmanager
def _noted(row: dict[str, Any], note: Note) -> Iterator[None]:
    with kept(row):
        yield
    if "error" in row:
        note(f"{row['name']}: {row['error']}")
