"""How many tokens to guess: what a run of so many takes, against how many of its guesses come true.

Nothing here changes a text, only when it is there. Runs whose guesses were wrong are paid from a small allowance: a
share of all the time that single steps take, and what good guesses have gained, up to a limit. So where guesses
never pay, wrong runs cost about that share; what it takes to think about guesses at all comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEPTHS = (1, 2, 3, 5, 7, 11, 15)  # guesses in a run; with those that the run before has accepted it has at most 31
HOPED = 0.9  # share of guesses that come true, before any was judged: high, since the allowance bounds what that costs
LATEST = 0.3  # weight of the latest judgement, or of a time longer than those before, in its average
WORTH = 1.05  # times as many tokens a second as without guesses, which is as near as times are known
SLOPE = 0.15  # of a step's time: what one token more in a run takes, before any was timed
UNTIMED = 1  # guesses until then
ALLOWANCE, SHARE, MOST = 1.5, 0.01, 4.0  # in steps: at the start of a text, more a step, and at most
REST = 64  # tokens after which guesses that were wrong get another trial
PAUSE = 8  # tokens for which a decision against guesses stands, since to think about it takes time too


@dataclass
class Judged:
    """Guesses of one kind."""

    share: float = HOPED  # of them that came true
    at: int = 0  # how many tokens the text had then
    paused: int = 0  # how many it has when to think about them again


@dataclass
class Times:
    """Of the runs of one graph, which outlast a text."""

    seconds: dict[int, float] = field(default_factory=dict)  # of a run of so many tokens
    prepared: set[int] = field(
        default_factory=set
    )  # sizes of which there was a run: the first prepares what others find

    def ran(self, tokens: int, seconds: float) -> None:
        """A run of so many tokens took that long."""
        if tokens not in self.prepared:
            self.prepared.add(tokens)
        else:
            before = self.seconds.get(tokens, seconds)
            self.seconds[tokens] = min(seconds, before + LATEST * (seconds - before))


class Pace:
    """Times and judgements of one text so far. Args: times: as earlier texts have found them."""

    def __init__(self, times: Times) -> None:
        self.times, self._seconds = times, times.seconds
        self._guessing = 0.0  # seconds of one guess
        self._kinds: dict[object, Judged] = {}
        self._allowance, self._written = ALLOWANCE, 0

    def depth(self, kind: object, waiting: int) -> int:
        """How many guesses of this kind to check behind so many tokens that wait; 0 is none."""
        if 1 not in self._seconds:  # the first token is one step, which the others are compared with
            return 0
        judged = self._kinds.setdefault(kind, Judged())
        if self._written < judged.paused:
            return 0
        if self._written - judged.at > REST:
            judged.share, judged.at = HOPED, self._written
        most = DEPTHS[-1] if max(self._seconds) > 1 else UNTIMED
        affordable = [
            n for n in DEPTHS if n <= most and self._steps(waiting, n) - self._steps(waiting) <= self._allowance
        ]
        best = max(affordable, key=lambda depth: self._rate(depth, kind, waiting), default=0)
        if best and self._rate(best, kind, waiting) > WORTH * self._rate(0, kind, waiting):
            return best
        judged.paused = self._written + PAUSE
        return 0

    def trusts(self, kind: object, guesses: int, waiting: int) -> bool:
        """Whether the states should take in so many guesses: none is then read again if all are right, and if one is
        wrong, the tokens that wait are."""
        return self._read_again(guesses, kind, waiting, True) < self._read_again(guesses, kind, waiting, False)

    def guessed(self, tokens: int, seconds: float) -> None:
        """To make so many guesses took that long."""
        each = seconds / tokens
        self._guessing = self._guessing + LATEST * (each - self._guessing) if self._guessing else each

    def judged(self, kind: object, guesses: int, waiting: int, right: int, written: int) -> None:
        """Of so many guesses, behind tokens that waited, the first `right` came true; so many tokens were chosen."""
        self._written += written
        a_step = guesses == 0 and waiting == 1
        gained = 0 if a_step or 1 not in self._seconds else written - self._steps(waiting, guesses)
        self._allowance = min(self._allowance + SHARE * written + gained, MOST)
        if guesses:
            judged = self._kinds.setdefault(kind, Judged())
            judged.at = self._written
            for n in range(min(right + 1, guesses, written)):
                judged.share += LATEST * ((n < right) - judged.share)

    def _steps(self, waiting: int, guesses: int = 0) -> float:
        """How many steps a run takes as long as."""
        return (self._time(waiting + guesses) + guesses * self._guessing) / self._time(1)

    def _rate(self, depth: int, kind: object, waiting: int) -> float:
        """Tokens a second of runs that check so many guesses, what is read again counted in."""
        share = self._share(kind)
        written = sum(share**n for n in range(depth + 1))
        again = min(self._read_again(depth, kind, waiting, trusting) for trusting in (True, False))
        return written / (self._time(waiting + depth + again) + depth * self._guessing)

    def _read_again(self, depth: int, kind: object, waiting: int, trusting: bool) -> float:
        """How many tokens are read once more, about: those that came true, or where the states took them in and one was
        wrong, those and what waited."""
        share = self._share(kind)
        right, all_right = sum(share**n for n in range(1, depth + 1)), share**depth
        return right + waiting - all_right * (depth + waiting) if trusting else right

    def _share(self, kind: object) -> float:
        return self._kinds[kind].share if kind in self._kinds else HOPED

    def _time(self, tokens: float) -> float:
        """Seconds of a run of so many tokens: between two that were timed, or with `SLOPE` beyond them."""
        seconds = self._seconds
        less = max((n for n in seconds if n <= tokens), default=None)
        more = min((n for n in seconds if n >= tokens), default=None)
        if less is None or more is None:
            near = more if less is None else less
            if near is None:
                return 1 + SLOPE * (tokens - 1)
            return seconds[near] * (1 + SLOPE * (tokens - near) / (1 + SLOPE * (near - 1)))
        if less == more:
            return seconds[less]
        return seconds[less] + (seconds[more] - seconds[less]) * (tokens - less) / (more - less)
