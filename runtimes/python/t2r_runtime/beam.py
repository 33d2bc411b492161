"""What a beam search is asked for, and what it gives; t2r_runtime.search does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from t2r_runtime.checks import is_number, require_value
from t2r_runtime.penalties import check_penalties

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
            require_value(
                type(value) is int and least <= value < 1 << 31, f"{name} of at least {least}", value, "sampling"
            )
        require_value(self.n_best <= self.width, f"n_best of at most the width, {self.width}", self.n_best, "sampling")
        steep = self.length_penalty
        require_value(
            is_number(steep) and abs(steep) <= STEEPEST,
            f"a length_penalty from {-STEEPEST} to {STEEPEST}",
            steep,
            "sampling",
        )
        stopping = self.early_stopping
        require_value(
            isinstance(stopping, bool) or stopping == "never",
            'early_stopping True, False or "never"',
            stopping,
            "sampling",
        )
        require_value(isinstance(self.forced_end, bool), "forced_end True or False", self.forced_end, "sampling")
        check_penalties(self.repetition_penalty, self.no_repeat_ngram)

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on what has occurred before."""
        return self.repetition_penalty != 1 or self.no_repeat_ngram > 0
