"""Options and results of beam search (t2r_runtime.translate.search)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from t2r_runtime.checks import require_value
from t2r_runtime.contract.options import BeamOptions, resolved


class Translation(NamedTuple):
    """A translation: its tokens, including an end token, and its score (higher is better)."""

    tokens: list[int]
    score: float


@dataclass(frozen=True)
class Beam:
    """Options of beam search.

    None selects the graph's option (`Signature.generation`) or else the default in brackets.

    Args:
        width: number of hypotheses; 1 is greedy [4].
        length_penalty: scores are sums of log-probabilities divided by the number of tokens to this power [1].
        early_stopping: True stops when `width` hypotheses are finished; False when in addition no unfinished one would
            score higher than the worst of them if it ended now; "never" if it ended at any length [False].
        max_tokens: maximum number of tokens, including the end token [256, or fewer if the model has fewer positions].
        min_tokens: minimum number of tokens before the end token [0].
        forced_end: force an end token at `max_tokens` [True].
        n_best: number of translations per sentence, at most `width`.
        repetition_penalty, no_repeat_ngram: as in t2r_runtime.Sampling, over start tokens and hypothesis.
        copy: copy numbers and names of the source, which needs the graph's tokenizers; see t2r_runtime.translate.copies
            [True].

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
    copy: bool | None = None

    def __post_init__(self) -> None:
        _check(resolved(BeamOptions, self, {"width": self.n_best}))  # without a width, any n_best is valid

    def resolved(self, generation: Mapping[str, Any] | None = None) -> BeamOptions:
        """Resolve all options for a graph with this `Signature.generation`.

        Raises:
            UserError: `n_best` exceeds the width.
        """
        options = resolved(BeamOptions, self, generation)
        _check(options)
        return options


def _check(options: BeamOptions) -> None:
    require_value(
        options.n_best <= options.width, f"n_best of at most the width, {options.width}", options.n_best, "sampling"
    )
