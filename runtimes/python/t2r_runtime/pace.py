"""How many tokens to guess: what a run of so many takes, against how many of its guesses come true.

Nothing here changes a text, only when it is there. Where guesses do not pay, there are none, but for a trial now and
then, each time twice as far apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEPTHS = (1, 2, 3, 5, 7, 11, 15)  # guesses in a run; with those that the run before has accepted it has at most 31
HOPED = 0.6  # share of guesses that come true, before any was judged
LATEST = 0.3  # weight of the latest judgement, or time, in its average
WORTH = 1.05  # times as many tokens a second as without guesses, which is as near as times are known
SLOPE = 0.15  # of a step's time: what one token more in a run takes, before any was timed
SHORTEST_REST, LONGEST_REST = 8, 128  # tokens without guesses


@dataclass
class Rest:
    """Of one kind of guesses."""

    left: int = 0  # tokens without them
    next: int = SHORTEST_REST  # how many the next rest has


class Pace:
    """Times and judgements of one text so far."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # of a run of so many tokens
        self._guessing = 0.0  # seconds of one guess
        self._true: dict[object, float] = {}  # share that came true, by their kind
        self._rests: dict[object, Rest] = {}

    def depth(self, kind: object, waiting: int) -> int:
        """How many guesses of this kind to check behind so many tokens that wait; 0 is none."""
        rest = self._rests.setdefault(kind, Rest())
        if rest.left > 0 or 1 not in self._seconds:  # the first token is one step, which the others are compared with
            return 0
        best = max(DEPTHS, key=lambda depth: self._rate(depth, kind, waiting))
        if self._rate(best, kind, waiting) > WORTH * self._rate(0, kind, waiting):
            return best
        rest.left, rest.next = rest.next, min(2 * rest.next, LONGEST_REST)
        self._true[kind] = max(self._share(kind), HOPED / 2)  # the next trial is of guesses that may be better
        return 0

    def trusts(self, kind: object, guesses: int, waiting: int) -> bool:
        """Whether the states should take in so many guesses: none is then read again if all are right, and if one is
        wrong, the tokens that wait are."""
        return self._read_again(guesses, kind, waiting, True) < self._read_again(guesses, kind, waiting, False)

    def ran(self, tokens: int, seconds: float) -> None:
        """A run of so many tokens took that long."""
        self._seconds[tokens] = _average(self._seconds.get(tokens), seconds)

    def guessed(self, tokens: int, seconds: float) -> None:
        """To make so many guesses took that long."""
        self._guessing = _average(self._guessing or None, seconds / tokens)

    def judged(self, kind: object, guesses: int, right: int, written: int) -> None:
        """Of so many guesses the first `right` came true, and so many tokens were chosen."""
        for rest in self._rests.values():
            rest.left = max(rest.left - written, 0)
        for n in range(min(right + 1, guesses, written)):
            self._true[kind] = _average(self._share(kind), float(n < right))
        if guesses and right == guesses:
            self._rests[kind] = Rest()

    def _share(self, kind: object) -> float:
        return self._true.get(kind, HOPED)

    def _rate(self, depth: int, kind: object, waiting: int) -> float:
        """Tokens a second of runs that check so many guesses, what is read again counted in."""
        written = sum(self._share(kind) ** n for n in range(depth + 1))
        again = min(self._read_again(depth, kind, waiting, trusting) for trusting in (True, False))
        return written / (_time_of(self._seconds, waiting + depth + again) + depth * self._guessing)

    def _read_again(self, depth: int, kind: object, waiting: int, trusting: bool) -> float:
        """How many tokens are read once more, about: those that came true, or where the states took them in and one was
        wrong, those and what waited."""
        share = self._share(kind)
        right, all_right = sum(share**n for n in range(1, depth + 1)), share**depth
        return right + waiting - all_right * (depth + waiting) if trusting else right


def _average(before: float | None, now: float) -> float:
    return now if before is None else before + LATEST * (now - before)


def _time_of(seconds: Mapping[int, float], tokens: float) -> float:
    """Seconds of a run of so many tokens: between two that were timed, or with `SLOPE` beyond them."""
    if not seconds:
        return 1.0 + SLOPE * (tokens - 1)
    less, more = (f([n for n in seconds if a * n <= a * tokens], default=None) for a, f in ((1, max), (-1, min)))
    if less is None or more is None:
        near = more if less is None else less
        assert near is not None
        step = seconds[near] / (1 + SLOPE * (near - 1))
        return seconds[near] + step * SLOPE * (tokens - near)
    if less == more:
        return seconds[less]
    return seconds[less] + (seconds[more] - seconds[less]) * (tokens - less) / (more - less)
