"""What a beam search is asked for, and what it gives; t2r_runtime.translate.search does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from t2r_runtime.checks import require_value
from t2r_runtime.contract.options import BeamOptions, resolved


class Translation(NamedTuple):
    """One of the n best: its tokens, one that ended it the last of them, and its score, of which more is better."""

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Beam:
    """How a translation is searched.

    None is an option that is not given: the graph's (`Signature.generation`), or else the default in brackets.

    Args:
        width: hypotheses that go on side by side; 1 is greedy [4].
        length_penalty: a score is the sum of log-probabilities over the number of tokens to this power [1].
        early_stopping: True ends a sentence when `width` hypotheses are finished; False, when moreover none that goes
            on would be better than the worst of them if it ended now; "never", if it ended at any length [False].
        max_tokens: the most of a translation, its end among them [256, or fewer where positions end before].
        min_tokens: before the end [0].
        forced_end: the last of `max_tokens` is an end, whatever its probability [True].
        n_best: how many translations of a sentence to give, at most `width`.
        repetition_penalty, no_repeat_ngram: as in t2r_runtime.Sampling; what has occurred are the start tokens and the
            hypothesis.

    Raises:
        UserError: a value out of range.
    """

    width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    forced_end: bool | None = None
    n_best: int = 1
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None

    def __post_init__(self) -> None:
        _check(resolved(BeamOptions, self, {"width": self.n_best}))  # a width that is not given may be any

    def resolved(self, generation: Mapping[str, Any] | None = None) -> BeamOptions:
        """All options, of a graph with this `Signature.generation`.

        Raises:
            UserError: an n_best above the graph's width.
        """
        options = resolved(BeamOptions, self, generation)
        _check(options)
        return options


def _check(options: BeamOptions) -> None:
    require_value(
        options.n_best <= options.width, f"n_best of at most the width, {options.width}", options.n_best, "sampling"
    )
