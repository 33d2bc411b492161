"""Compare the runtimes of all languages on one graph: milliseconds per step, and tokenization.

The programs are in comparison/programs.py. All programs of a setting are opened and must produce the same greedy
tokens; then they are timed in turns, in another order each round.
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
Command = Callable[[], Sequence[str]]  # raises UserError if the program is not available


@dataclass(frozen=True, kw_only=True)
class Often:
    """Number of measurements."""

    rounds: int = 5
    turns: int = 10  # per round
    checked: int = 32  # outputs that must agree


QUICK = Often(rounds=1, turns=5, checked=8)


def side_by_side(
    about: Mapping[str, Any], programs: Mapping[str, Command], expected: str, often: Often, note: Note
) -> list[dict[str, Any]]:
    """Rows of milliseconds per turn with the ratio to the first; failed programs have the reason in their row.

    Args:
        about: fields of the setting for each row.
        programs: commands by name.
        expected: name of the reference program.
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
    """Check the output of a program.

    Raises:
        UserError: names the index of the first difference.
    """
    if list(found) != list(right) or not right:
        at = next((n for n, pair in enumerate(zip(found, right, strict=False)) if pair[0] != pair[1]), len(right))
        raise UserError("the numbers of the others", f"another at {at}", "find out which is wrong: there is no speed")


def encoding(text: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert rows of milliseconds per text to megabytes per second."""
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
