"""Number of draft tokens per run, from measured run times and acceptance rates.

Time lost by rejected drafts is paid from an allowance: a small share of the time of single steps plus the time gained
by accepted drafts, up to a limit. It is kept across texts, so if drafts never pay off, they cost about that share. A
depth needs an allowance for the time that it loses if all its tokens are rejected, times a careful estimate of how
likely a rejection is. The time of a run is what it took, and that of the steps after it, which are slower where two
graphs do not fit into a cache; but a pause of the process must not end all drafts, so both are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEPTHS = (1, 2, 3, 5, 7, 11, 15)  # draft tokens per run; with the accepted ones a run has at most 31
HOPED = 0.9  # initial acceptance rate: high, as the allowance bounds the cost
LATEST = 0.3  # weight of the latest value in moving averages
WORTH = 1.05  # minimum speedup for drafting, about the precision of the times
SLOPE = 0.15  # time per token beyond the measured sizes, relative to a step: low, so that larger ones are tried
UNTIMED = 1  # maximum draft tokens until then
ALLOWANCE, SHARE, MOST = 2.0, 0.01, 4.0  # in steps: initial, added per step, maximum
REST = 64  # tokens after which rejected kinds are tried again
PAUSE = 8  # tokens for which a decision against drafting holds
DEAR = 2.0  # a run costs at most this many times what is expected
AFTER, SLOW = 3, 4.0  # steps after a run of several tokens, and the most that one of them costs, in steps


@dataclass
class Judged:
    """Acceptance of drafts of one kind."""

    share: float = HOPED  # moving average of the acceptance rate
    right: int = 0  # accepted draft tokens
    tried: int = 0  # those, and the rejected ones
    at: int = 0  # length of the text at the last draft
    paused: int = 0  # length of the text from which to decide again


@dataclass
class Times:
    """Run times of a graph and the allowance of its drafts, kept across texts."""

    seconds: dict[int, float] = field(default_factory=dict)  # by number of tokens
    prepared: set[int] = field(
        default_factory=set
    )  # sizes that have run once; the first run of a size includes set-up and is not timed
    allowance: float = ALLOWANCE  # in steps
    steps: int = AFTER  # single ones since the last run of several tokens

    def ran(self, tokens: int, seconds: float) -> None:
        """Record and pay the time of a run."""
        step = self.seconds.get(1, seconds)
        self.steps = self.steps + 1 if tokens == 1 else 0
        if tokens > 1:
            expected = self.of(tokens) if self.seconds else seconds
            self.allowance -= min(seconds, DEAR * expected) / step
        else:
            self.allowance -= min(max(seconds / step, 1), SLOW) if self.steps <= AFTER else 1
        if tokens not in self.prepared:
            self.prepared.add(tokens)
        elif tokens > 1 or self.steps > AFTER:
            before = self.seconds.get(tokens, seconds)
            self.seconds[tokens] = min(seconds, before + LATEST * (seconds - before))

    def chose(self, tokens: int) -> None:
        """Record the number of tokens that were chosen."""
        self.allowance = min(self.allowance + (1 + SHARE) * tokens, MOST)

    def of(self, tokens: float) -> float:
        """Time of a run of `tokens`, interpolated between measured sizes or extrapolated with `SLOPE`."""
        seconds = dict(self.seconds)  # forks in other threads add to it
        less = max(n for n in seconds if n <= tokens)  # a step was measured before anything else
        more = min((n for n in seconds if n >= tokens), default=None)
        if more is None:
            return seconds[less] + SLOPE * (tokens - less) * seconds[1]
        if less == more:
            return seconds[less]
        return seconds[less] + (seconds[more] - seconds[less]) * (tokens - less) / (more - less)


class Pace:
    """Chooses the number of draft tokens for one text."""

    def __init__(self, times: Times) -> None:
        self.times, self._seconds = times, times.seconds
        self._guessing = 0.0  # seconds per draft token
        self._kinds: dict[object, Judged] = {}
        self._written = 0

    def depth(self, kind: object, waiting: int) -> int:
        """Number of draft tokens of this kind to check after `waiting` accepted tokens."""
        if 1 not in self._seconds:  # the first run is a single step, for comparison
            return 0
        judged = self._kinds.setdefault(kind, Judged())
        if self._written < judged.paused:
            return 0
        if self._written - judged.at > REST:
            judged.share, judged.at = HOPED, self._written
        most = DEPTHS[-1] if max(self._seconds) > 1 else UNTIMED
        rejected = 1 - judged.right / (judged.tried + 1)
        affordable = [
            n
            for n in DEPTHS
            if n <= most and rejected * (self._steps(waiting, n) - self._steps(waiting)) <= self.times.allowance
        ]
        best = max(affordable, key=lambda depth: self._rate(depth, kind, waiting), default=0)
        if best and self._rate(best, kind, waiting) > WORTH * self._rate(0, kind, waiting):
            return best
        judged.paused = self._written + PAUSE
        return 0

    def trusts(self, kind: object, guesses: int, waiting: int) -> bool:
        """Whether the states should include the draft tokens: if all are accepted, none is read again; otherwise the
        waiting tokens are."""
        return self._read_again(guesses, kind, waiting, True) < self._read_again(guesses, kind, waiting, False)

    def guessed(self, tokens: int, seconds: float) -> None:
        """Record and pay the time of drafting."""
        each, before = seconds / tokens, self._guessing
        self._guessing = min(each, before + LATEST * (each - before)) if before else each
        self.times.allowance -= tokens * self._guessing / self.times.of(1)

    def judged(self, kind: object, guesses: int, right: int, written: int) -> None:
        """Record that the first `right` of `guesses` draft tokens were accepted and `written` tokens chosen."""
        self._written += written
        self.times.chose(written)
        if guesses:
            judged = self._kinds.setdefault(kind, Judged())
            judged.at = self._written
            for n in range(min(right + 1, guesses, written)):
                judged.share += LATEST * ((n < right) - judged.share)
                judged.right, judged.tried = judged.right + (n < right), judged.tried + 1

    def _steps(self, waiting: int, guesses: int = 0) -> float:
        """Time of a run, in steps."""
        return (self.times.of(waiting + guesses) + guesses * self._guessing) / self.times.of(1)

    def _rate(self, depth: int, kind: object, waiting: int) -> float:
        """Tokens per second with `depth` draft tokens per run, including tokens read again."""
        share = self._share(kind)
        written = sum(share**n for n in range(depth + 1))
        again = min(self._read_again(depth, kind, waiting, trusting) for trusting in (True, False))
        return written / (self.times.of(waiting + depth + again) + depth * self._guessing)

    def _read_again(self, depth: int, kind: object, waiting: int, trusting: bool) -> float:
        """Expected number of tokens read again."""
        share = self._share(kind)
        right, all_right = sum(share**n for n in range(1, depth + 1)), share**depth
        return right + waiting - all_right * (depth + waiting) if trusting else right

    def _share(self, kind: object) -> float:
        return self._kinds[kind].share if kind in self._kinds else HOPED
