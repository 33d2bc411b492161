"""From logits to a token: penalties, temperature, top-k, top-p (nucleus, Holtzman et al. 2020), min-p (Nguyen et al.
2024, arXiv 2407.01082), in this order, then a draw.

Arithmetic is float64 and starts from the largest logit, so that neither a small temperature nor large logits overflow.
A draw is the largest of scores and Gumbel noise, which a graph can make too (t2r_runtime.contract.noise): the same
seed gives the same text whether a program or a graph writes it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of, require_kind, require_value
from t2r_runtime.contract.noise import gumbel, word
from t2r_runtime.contract.options import SamplingOptions, resolved
from t2r_runtime.contract.penalties import Logits, penalized
from t2r_runtime.errors import UserError, shown


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a text are chosen, and which of them end it.

    None is an option that is not given: the graph's (`Signature.generation`), or else the default in brackets.

    Args:
        temperature: divides the logits; 0 is greedy (the largest logit, of equals the lowest token) [1].
        top_k: only the k largest logits; 0 is no limit [0]. Of equals at the edge, the lowest tokens stay.
        top_p: only the most probable tokens that together reach p; 1 is no limit [1]. The first always stays.
        seed: of the noise; the same seed gives the same tokens. None is a new one for each text.
        stop_tokens: a token that ends the text; None is the graph's eos_tokens, () is none. Whether the model has them
            is checked when a text begins.
        min_p: only tokens at least this many times as probable as the most probable one; 0 is no limit [0].
        repetition_penalty: above 1, tokens that have occurred become less likely, below 1 more; 1 is none [1].
        no_repeat_ngram: no row of so many tokens occurs twice; 0 is no limit [0]. See `penalties` for both.

    What has occurred is all that a decoder has read since its start, its prompts and its own text, and no more than the
    last 65,536 tokens of it (`Decoder.history`).

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
        """All options, of a graph with this `Signature.generation`."""
        return resolved(SamplingOptions, self, generation)


class Sampler:
    """Chooses the tokens of one text: the rules, and the noise of one seed, of which each draw takes the next.

    Args:
        generation: the graph's options, `Signature.generation`.
    """

    def __init__(self, sampling: Sampling, generation: Mapping[str, Any] | None = None) -> None:
        require_kind(sampling, Sampling, "a Sampling", "sampling")
        self.sampling = sampling.resolved(generation)
        self.seed = int.from_bytes(os.urandom(4)) if sampling.seed is None else word(sampling.seed)  # 32 bits
        self.draws = 0  # how often a token was chosen

    def pick(self, logits: Logits, tokens: ArrayLike | None = None, text: ArrayLike = ()) -> int:
        """One token for logits (vocabulary,); a logit of -inf is never chosen.

        Args:
            tokens: whose logits these are, where they are not all: the `sampling.limit` largest, or more of them. The
                same token is chosen as from all.
            text: what has occurred, integers (T,), oldest first. Penalties look back on it, and nothing else does.

        Raises:
            UserError: NaN or +inf among the logits, or nothing but -inf; penalties of logits that are not all.
        """
        if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.dtype.kind != "f" or not logits.size:
            raise UserError("logits, floats (vocabulary,)", shown(logits), "give one row of them", "sampling")
        if tokens is not None:
            tokens = _row_of_integers(tokens, "tokens")
            if tokens.size != logits.size:
                raise UserError(f"the tokens of {logits.size} logits", f"{tokens.size}", "give as many", "sampling")
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
            raise UserError(
                "all logits, whose order penalties change",
                f"{logits.size} of them",
                "give all, or leave out repetition_penalty and no_repeat_ngram",
                "sampling",
            )
        occurred = _row_of_integers(text, "a text of tokens")
        if occurred.size and not 0 <= occurred.min() <= occurred.max() < logits.size:
            received = f"{occurred.min()} … {occurred.max()}"
            raise UserError(
                f"a text of tokens in 0 … {logits.size - 1}", received, "give what the decoder has read", "token"
            )
        rules = self.sampling
        return penalized(logits, occurred, rules.repetition_penalty, rules.no_repeat_ngram)

    def _allowed(self, logits: Logits, best: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The places of those that may be chosen, rising, and their scores: logarithms of their weights.

        They are ranked by the logits themselves: scores and weights that differ little become equal by rounding.
        """
        temperature, top_k, top_p = self.sampling.temperature, self.sampling.top_k, self.sampling.top_p
        scores = logits.astype(np.float64)
        scores -= float(logits[best])  # at most 0
        with np.errstate(over="ignore"):  # a tiny temperature: -inf is the right limit
            scores /= temperature
        places = np.arange(scores.size)
        if 0 < top_k < scores.size:
            edge = np.partition(logits, -top_k)[-top_k]
            above = np.flatnonzero(logits > edge)
            ties = np.flatnonzero(logits == edge)[: top_k - above.size]
            places = np.sort(np.concatenate([above, ties]))
        if top_p < 1:
            weights = np.exp(scores[places])
            # those below this weight add up to less than 1 - p: left out before the sort, which takes longest
            large = weights >= (1 - top_p) * weights.mean()
            total = weights.cumsum()[-1]  # one after the other, as every runtime can: sum() adds in pairs
            places, weights = places[large], weights[large]
            order = np.argsort(-logits[places], kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            places = np.sort(places[order[before < top_p * total]])
        if self.sampling.min_p > 0:
            places = places[scores[places] >= math.log(self.sampling.min_p)]
        return places, scores if places.size == scores.size else scores[places]


def _largest(logits: Logits) -> int:
    """The place of the largest, of equals the lowest; all must be finite or -inf, and not all of them -inf."""
    best = int(np.argmax(logits))  # the first NaN, if there is one
    if not math.isfinite(logits[best]):
        raise UserError("finite logits", f"{logits[best]} at token {best}", "check the graph with t2r verify", "graph")
    return best


def _row_of_integers(value: ArrayLike, what: str) -> NDArray[np.int64]:
    row = array_of(value, what, "token")
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
        raise UserError(f"{what}, integers (N,)", shown(value), "give one row of them", "sampling")
    return row.astype(np.int64)
