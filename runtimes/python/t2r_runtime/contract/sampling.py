"""Sampling: penalties, temperature, top-k, top-p (nucleus, Holtzman et al. 2020) and min-p (Nguyen et al. 2024, arXiv
2407.01082), in this order.

Arithmetic is float64, relative to the largest logit, so that small temperatures and large logits do not overflow. The
sample is the argmax of scores plus Gumbel noise (t2r_runtime.contract.noise), so a seed gives the same text in every
language.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of, not_finite, range_of, require_kind, require_value
from t2r_runtime.contract.noise import gumbel, word
from t2r_runtime.contract.options import SamplingOptions, resolved
from t2r_runtime.contract.penalties import Logits, penalized
from t2r_runtime.errors import UserError, shown


@dataclass(frozen=True)
class Sampling:
    """Sampling options and stop tokens.

    None selects the graph's option (`Signature.generation`) or else the default in brackets.

    Args:
        temperature: divides the logits; 0 is greedy (the largest logit; of equal logits the lowest token) [1].
        top_k: keep the k largest logits; 0 is no limit [0]. Of equal logits the lowest tokens are kept.
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least p; 1 is no limit [1].
        seed: random seed; None draws a new one for each text.
        stop_tokens: tokens that end the text; None is the graph's eos_tokens, () is none. Checked against the
            vocabulary when a text begins.
        min_p: keep tokens at least this many times as likely as the most likely one; 0 is no limit [0].
        repetition_penalty: above 1 earlier tokens become less likely, below 1 more likely; 1 is none [1].
        no_repeat_ngram: n-grams of this length occur at most once; 0 is no limit [0].

    Penalties apply to the tokens that the decoder has read since its start, prompts included, up to the last 65,536
    (`Decoder.history`).

    Raises:
        UserError: a value out of range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_tokens: Sequence[int] | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None

    def __post_init__(self) -> None:
        seed = self.seed
        require_value(seed is None or (type(seed) is int and seed >= 0), "a seed of 0 or more", seed, "sampling")
        self.resolved()

    def resolved(self, generation: Mapping[str, Any] | None = None) -> SamplingOptions:
        """Resolve all options for a graph with this `Signature.generation`."""
        return resolved(SamplingOptions, self, generation)


class Sampler:
    """Samples the tokens of one text.

    Args:
        generation: the graph's options, `Signature.generation`.

    Attributes:
        sampling: the resolved options.
        seed: 32-bit seed.
        draws: number of tokens chosen so far.
    """

    def __init__(self, sampling: Sampling, generation: Mapping[str, Any] | None = None) -> None:
        require_kind(sampling, Sampling, "a Sampling", "sampling")
        self.sampling = sampling.resolved(generation)
        self.seed = int.from_bytes(os.urandom(4)) if sampling.seed is None else word(sampling.seed)
        self.draws = 0

    def pick(self, logits: Logits, tokens: ArrayLike | None = None, text: ArrayLike = ()) -> int:
        """Choose a token from logits (vocabulary,); a logit of -inf is never chosen.

        Args:
            tokens: the tokens of `logits`, integers (N,), if these are only the largest, at least `sampling.limit`. The
                result is the same as for all logits.
            text: earlier tokens for the penalties, integers (T,), oldest first.

        Raises:
            UserError: logits with NaN or +inf, or only -inf; or penalties with `tokens`.
        """
        if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.dtype.kind != "f" or not logits.size:
            raise UserError("logits, floats (vocabulary,)", shown(logits), "pass a one-dimensional array", "sampling")
        if tokens is not None:
            tokens = _row_of_integers(tokens, "tokens")
            if tokens.size != logits.size:
                raise UserError(f"the tokens of {logits.size} logits", f"{tokens.size}", "pass as many", "sampling")
            order = np.argsort(tokens)
            logits, tokens = logits[order], tokens[order]
        best = _largest(logits)
        if self.sampling.looks_back:
            logits = self._penalized(logits, tokens, text)
            best = _largest(logits)
        self.draws += 1
        if self.sampling.temperature > 0 and self.sampling.top_k != 1:
            places, scores = self._allowed(logits, best)
            noise = gumbel(self.seed, self.draws - 1, places if tokens is None else tokens[places])
            best = int(places[np.argmax(scores + noise)])
        return best if tokens is None else int(tokens[best])

    def _penalized(self, logits: Logits, tokens: NDArray[np.int64] | None, text: ArrayLike) -> Logits:
        if tokens is not None:
            do = "pass all, or leave out repetition_penalty and no_repeat_ngram"
            raise UserError("all logits for penalties", f"the {logits.size} largest", do, "sampling")
        occurred = _row_of_integers(text, "a text of tokens")
        if occurred.size and not 0 <= occurred.min() <= occurred.max() < logits.size:
            expected, received = f"a text of tokens in 0 … {logits.size - 1}", range_of(occurred.min(), occurred.max())
            raise UserError(expected, received, "pass the tokens that the decoder has read", "token")
        rules = self.sampling
        return penalized(logits, occurred, rules.repetition_penalty, rules.no_repeat_ngram)

    def _allowed(self, logits: Logits, best: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices of the candidates, ascending, and their scores, the logarithms of their weights.

        Candidates are ranked by logits, since scores and weights may round to equal values.
        """
        temperature, top_k, top_p = self.sampling.temperature, self.sampling.top_k, self.sampling.top_p
        scores = logits.astype(np.float64)
        scores -= float(logits[best])  # at most 0
        with np.errstate(over="ignore"):  # -inf is the right limit at a tiny temperature
            scores /= temperature
        places = np.arange(scores.size)
        if 0 < top_k < scores.size:
            edge = np.partition(logits, -top_k)[-top_k]
            above = np.flatnonzero(logits > edge)
            ties = np.flatnonzero(logits == edge)[: top_k - above.size]
            places = np.sort(np.concatenate([above, ties]))
        if top_p < 1:
            weights = np.exp(scores[places])
            # smaller weights sum to less than 1 - p; drop them before the sort, the slowest step
            large = weights >= (1 - top_p) * weights.mean()
            total = weights.cumsum()[-1]  # sequential, as in every runtime; sum() adds pairwise
            places, weights = places[large], weights[large]
            order = np.argsort(-logits[places], kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            places = np.sort(places[order[before < top_p * total]])
        if self.sampling.min_p > 0:
            places = places[scores[places] >= math.log(self.sampling.min_p)]
        return places, scores if places.size == scores.size else scores[places]


def _largest(logits: Logits) -> int:
    """Index of the largest logit, the lowest of equals. Raises UserError on NaN or +inf, or if all are -inf."""
    best = int(np.argmax(logits))  # the first NaN, if there is one
    if not math.isfinite(logits[best]):
        raise not_finite(f"{logits[best]} at token {best}")
    return best


def _row_of_integers(value: ArrayLike, what: str) -> NDArray[np.int64]:
    row = array_of(value, what, "token")
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise UserError(f"{what}, integers (N,)", shown(value), "pass a one-dimensional array", "sampling")
    return row.astype(np.int64)
