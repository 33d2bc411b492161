"""The text of one choice, piece by piece, with stop texts and log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.decode.score import log_probabilities
from t2r_runtime.decode.text import STOP
from t2r_runtime.serve.grammars import Mask
from t2r_runtime.text.stops import Until
from t2r_runtime.text.tokenizer import Tokenizer

LEAST = -9999.0  # replaces -inf, which JSON lacks


class LogProb(NamedTuple):
    """The log-probability of a token, None for the first of a prompt, and the most likely tokens with theirs.

    `place` is where the token's text begins in the choice's text.
    """

    token: int
    value: float | None
    top: list[tuple[int, float]]
    place: int


class Echo(NamedTuple):
    """The text of a prompt, and where each of its tokens begins in it if their log-probabilities are collected."""

    text: str = ""
    places: Sequence[int] = ()


@dataclass
class Piece:
    """An increment of a choice.

    Attributes:
        finish: "stop" or "length" in its last piece.
    """

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogProb] = field(default_factory=list)
    finish: str | None = None


class Writer:
    """Collects the tokens of one choice.

    Args:
        index: number of the choice in its answer.
        tokenizer: None writes token ids only.
        prompt: tokens before the text.
        stops: texts that end the choice, excluded from it.
        top: number of most likely tokens with each log-probability; None collects none.
        echo: prompt to begin the first piece with.
        mask: the form of the text.
        written: special tokens that are a part of the text.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stops: Sequence[str] = (),
        top: int | None = None,
        echo: Echo | None = None,
        mask: Mask | None = None,
        written: Mapping[int, str] | None = None,
    ) -> None:
        echo = echo or Echo()
        self._piece, self._index = Piece(index, echo.text), index
        self._echoed, self._end = iter(echo.places), len(echo.text)
        self._stream = None if tokenizer is None else tokenizer.stream(prompt[-64:])
        self._until, self._top, self._mask, self._written = Until(stops), top, mask, written or {}
        self.generated = 0

    def first(self, token: int) -> None:
        """Record the first token of a prompt whose log-probabilities are collected."""
        self._note(token, None, [])

    def watch(self, logits: NDArray[np.float32], token: int) -> None:
        """Collect the log-probability of a token, given all logits (vocabulary,)."""
        if self._top is not None:
            self._note(token, *_log_prob(logits, token, self._top))

    def _note(self, token: int, value: float | None, top: list[tuple[int, float]]) -> None:
        self._piece.logprobs.append(LogProb(token, value, top, next(self._echoed, self._end)))

    @property
    def watches(self) -> bool:
        """Whether log-probabilities are collected."""
        return self._top is not None

    def token(self, token: int, shown: bool) -> bool:
        """Add a token; returns whether a stop text, or all that its form allows, is complete.

        Args:
            shown: False for a stop token, which has no text.
        """
        self.generated += 1
        self._piece.tokens.append(token)
        if self._stream is not None and shown:
            text = self._stream.feed(token) + self._written.get(token, "")
            self._end += len(text)
            self._piece.text += self._until.feed(text)
        complete = shown and self._mask is not None and self._mask.take(token)
        return self._until.found or complete

    def take(self, finish: str | None = None) -> Piece:
        """The piece since the last call; the last one if `finish` is given."""
        if finish is not None and self._stream is not None and not self._until.found:
            self._piece.text += self._until.feed(self._stream.end())
            self._piece.text += self._until.end()
            finish = STOP if self._until.found else finish
        piece, self._piece = self._piece, Piece(self._index)
        piece.finish = finish
        return piece


def _log_prob(logits: NDArray[np.float32], token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    values = np.maximum(log_probabilities(logits), LEAST)
    best: list[tuple[int, float]] = []
    if top:
        edge = np.partition(values, -min(top, values.size))[-min(top, values.size)]
        places = np.flatnonzero(values >= edge)
        order = places[np.argsort(-values[places], kind="stable")][:top]
        best = [(int(place), float(values[place])) for place in order]
    return float(values[token]), best
