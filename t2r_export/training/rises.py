"""Notice a loss that rises, within twenty steps."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

EVERY = 10  # steps between two looks
LATEST = 5  # losses whose mean is compared
ROSE = 0.1  # of the lowest mean, and ERRORS standard errors, that a rise exceeds
ERRORS = 3.0


class Rise(NamedTuple):
    """A rise of the loss."""

    lowest: float  # mean of LATEST losses of the stage, or its first
    latest: float
    worse: bool  # whether the loss is above the first


@dataclass
class Watch:
    """The losses of a stage; each rise halves the learning rate. Its fields are part of the training state."""

    factor: float = 1.0  # on the stage's learning rate
    first: float | None = None  # loss of the first step, before any update
    lowest: float | None = None
    losses: list[float] = field(default_factory=list)  # since the last look

    def add(self, losses: list[float], step: int) -> Rise | None:
        """Add the losses of the steps up to `step`; look at steps divisible by EVERY."""
        self.losses += losses
        if step % EVERY:
            return None
        seen, self.losses = self.losses, []
        if self.first is None or self.lowest is None:
            self.first = self.lowest = seen[0]
        latest = seen[-LATEST:]
        mean, noise = sum(latest) / len(latest), _noise(latest)
        if not _is_above(mean, self.lowest, noise, 1 if self.lowest == self.first else LATEST):
            self.lowest = min(self.lowest, mean)
            return None
        rise = Rise(self.lowest, mean, _is_above(mean, self.first, noise, 1))
        self.factor /= 2
        self.lowest = self.first if rise.worse else mean
        return rise


def _noise(losses: list[float]) -> float:
    """Standard deviation of single losses, from the differences between neighbors, which a trend hardly changes."""
    squares = [(after - before) ** 2 for before, after in itertools.pairwise(losses)]
    return math.sqrt(sum(squares) / max(1, len(squares)) / 2)


def _is_above(mean: float, earlier: float, noise: float, count: int) -> bool:
    """Whether a mean of LATEST losses is clearly above an earlier mean of `count` losses."""
    return mean - earlier > ROSE * abs(earlier) + ERRORS * noise * math.sqrt(1 / LATEST + 1 / count)
