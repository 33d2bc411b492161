"""What a beam search is asked for, and what it gives; t2r_runtime.search does it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from t2r_runtime.errors import UserError
from t2r_runtime.penalties import LARGEST_PENALTY, LONGEST_NGRAM

STEEPEST = 10.0  # the largest exponent of a length


class Translation(NamedTuple):
    """One of the n best: its tokens, one that ended it the last of them, and its score, of which more is better."""

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Beam:
    """How a translation is searched.

    Args:
        width: hypotheses that go on side by side; 1 is greedy.
        length_penalty: a score is the sum of log-probabilities over the number of tokens to this power.
        early_stopping: True ends a sentence when `width` hypotheses are finished; False, when moreover none that goes
            on would be better than the worst of them if it ended now; "never", if it ended at any length.
        max_tokens: the most of a translation, its end among them; None is 256, or fewer where positions end before.
        min_tokens: before the end.
        forced_end: the last of `max_tokens` is an end, whatever its probability.
        n_best: how many translations of a sentence to give, at most `width`.
        repetition_penalty, no_repeat_ngram: as in t2r_runtime.Sampling; what has occurred are the start tokens and the
            hypothesis.

    Raises:
        UserError: a value out of range.
    """

    width: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    max_tokens: int | None = None
    min_tokens: int = 0
    forced_end: bool = True
    n_best: int = 1
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    def __post_init__(self) -> None:
        whole = {"width": 1, "n_best": 1, "min_tokens": 0, **({} if self.max_tokens is None else {"max_tokens": 1})}
        for name, least in whole.items():
            value = getattr(self, name)
            _require(type(value) is int and least <= value < 1 << 31, f"{name} of at least {least}", value)
        _require(self.n_best <= self.width, f"n_best of at most the width, {self.width}", self.n_best)
        steep = self.length_penalty
        _require(
            _is_number(steep) and abs(steep) <= STEEPEST, f"a length_penalty from {-STEEPEST} to {STEEPEST}", steep
        )
        stopping = self.early_stopping
        _require(isinstance(stopping, bool) or stopping == "never", 'early_stopping True, False or "never"', stopping)
        _require(isinstance(self.forced_end, bool), "forced_end True or False", self.forced_end)
        penalty, ngram = self.repetition_penalty, self.no_repeat_ngram
        _require(
            _is_number(penalty) and 1 / LARGEST_PENALTY <= penalty <= LARGEST_PENALTY,
            f"a repetition_penalty from {1 / LARGEST_PENALTY} to {LARGEST_PENALTY:.0f} (1 is none)",
            penalty,
        )
        _require(
            type(ngram) is int and 0 <= ngram <= LONGEST_NGRAM,
            f"no_repeat_ngram from 0 (no limit) to {LONGEST_NGRAM}",
            ngram,
        )

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on what has occurred before."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram > 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _require(good: bool, expected: str, received: object) -> None:
    if not good:
        raise UserError(expected, repr(received), "choose another value")
