"""From logits to a token: temperature, then top-k, then top-p (nucleus, Holtzman et al. 2020), then a draw.

Arithmetic is float64 and starts from the largest logit, so that neither a small temperature nor large logits overflow.
A draw is the largest of scores and Gumbel noise, which a graph can make too (t2r_runtime.noise): the same seed gives
the same text whether a program or a graph writes it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.checks import require_kind
from t2r_runtime.errors import UserError, printable
from t2r_runtime.noise import gumbel, word


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a text are chosen, and which of them end it.

    Args:
        temperature: divides the logits; 0 is greedy (the largest logit, of equals the lowest token), without chance.
        top_k: only the k largest logits; 0 is no limit. Of equals at the edge, the lowest tokens stay.
        top_p: only the most probable tokens that together reach p; 1 is no limit. The first always stays.
        seed: of the noise; the same seed gives the same tokens. None is a new one for each text.
        stop_tokens: a token that ends the text; None is the graph's eos_tokens, () is none. Whether the model has them
            is checked when a text begins.

    Raises:
        UserError: a value out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: Sequence[int] | None = None

    def __post_init__(self) -> None:
        temperature, top_k, top_p, seed = self.temperature, self.top_k, self.top_p, self.seed
        _require(
            _is_number(temperature) and 0 <= temperature <= sys.float_info.max,
            "a temperature of 0 or more",
            temperature,
        )
        _require(type(top_k) is int and top_k >= 0, "top_k of 0 (no limit) or more", top_k)
        _require(_is_number(top_p) and 0 < top_p <= 1, "top_p above 0 and at most 1 (no limit)", top_p)
        _require(seed is None or (type(seed) is int and seed >= 0), "a seed of 0 or more", seed)

    @property
    def limit(self) -> int:
        """How many of the largest logits are enough to choose from; 0 is all of them."""
        return 1 if self.temperature == 0 else self.top_k


class Sampler:
    """Chooses the tokens of one text: the rules, and the noise of one seed, of which each draw takes the next."""

    def __init__(self, sampling: Sampling) -> None:
        require_kind(sampling, Sampling, "a Sampling")
        self.sampling = sampling
        self.seed = int.from_bytes(os.urandom(4)) if sampling.seed is None else word(sampling.seed)  # 32 bits
        self.draws = 0  # how often a token was chosen

    def pick(self, logits: NDArray[np.floating[Any]], tokens: NDArray[np.int64] | None = None) -> int:
        """One token for logits (vocabulary,); a logit of -inf is never chosen.

        Args:
            tokens: whose logits these are, where they are not all: the `sampling.limit` largest, or more of them. The
                same token is chosen as from all.

        Raises:
            UserError: NaN or +inf among the logits, or nothing but -inf.
        """
        if not isinstance(logits, np.ndarray) or logits.ndim != 1 or logits.dtype.kind != "f" or not logits.size:
            raise UserError("logits, floats (vocabulary,)", printable(repr(logits), 100), "give one row of them")
        if tokens is not None:
            order = np.argsort(tokens)
            logits, tokens = logits[order], tokens[order]
        best = int(np.argmax(logits))  # the first NaN, if there is one
        if not math.isfinite(logits[best]):
            raise UserError("finite logits", f"{logits[best]} at token {best}", "check the graph with t2r verify")
        self.draws += 1
        if self.sampling.temperature > 0 and self.sampling.top_k != 1:
            places, scores = self._allowed(logits, best)
            noise = gumbel(self.seed, self.draws - 1, places if tokens is None else tokens[places])
            best = int(places[np.argmax(scores + noise)])
        return best if tokens is None else int(tokens[best])

    def _allowed(self, logits: NDArray[np.floating[Any]], best: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
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
            total, places, weights = weights.sum(), places[large], weights[large]
            order = np.argsort(-logits[places], kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            places = np.sort(places[order[before < top_p * total]])
        return places, scores if places.size == scores.size else scores[places]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _require(good: bool, expected: str, received: object) -> None:
    if not good:
        raise UserError(expected, repr(received), "choose another value")
