"""Guesses of what comes next: what a draft-check graph reads at once (t2r_runtime.decode.speculation).

Whatever is guessed, the text is the one that single steps would write; good guesses make it come sooner.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from t2r_runtime.contract.signature import Signature
from t2r_runtime.decode.generate import Request, next_logits
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import Stepper, TokenIds

LONGEST, SHORTEST = 6, 2  # tokens that a place is found by


class Drafter(Protocol):
    """What guesses."""

    def read(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        ...

    def kind(self) -> object:
        """Of which kind a guess would be now; None where there is none. Those of one kind come true about equally
        often."""
        ...

    def propose(self, most: int, request: Request) -> Sequence[int]:
        """At most so many tokens that may come next."""
        ...


class Lookup:
    """What came after the last tokens when they stood in this text before (prompt lookup: Saxena 2023, and LLMA, Yang
    et al. 2023, arXiv 2304.04487): the longest row of 6 to 2 tokens that did, at its latest place. No model.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # where rows of tokens ended last
        self._place: int | None = None  # where the longest row that ends the text ended before
        self._size = 0  # of that row

    def read(self, tokens: Sequence[int]) -> None:
        text, ends = self._text, self._ends
        for token in tokens:
            text.append(token)
            self._place, latest = None, tuple(text[-LONGEST:])
            for size in range(SHORTEST, len(latest) + 1):
                row = latest[-size:]
                if (before := ends.get(row)) is not None:
                    self._place, self._size = before, size
                ends[row] = len(text)

    def kind(self) -> object:
        """How many of the last tokens stood together before."""
        return None if self._place is None else self._size

    def propose(self, most: int, request: Request) -> Sequence[int]:
        return () if self._place is None else self._continued(self._place, most)

    def _continued(self, place: int, most: int) -> list[int]:
        """What stands there; where the text ends, it goes on as a text that repeats itself would."""
        period = len(self._text) - place
        return [self._text[place + n % period] for n in range(most)]


class DraftStepper(Stepper, Protocol):
    """A Decoder, which imports this module."""

    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0, history: ArrayLike = ()) -> None: ...


class Model:
    """A smaller model of the same tokens. It draws with the noise of the text itself, so that it guesses the tokens of
    sampled texts as well as it can.

    Args:
        decoder: at the start of a text, and for these drafts alone.

    Raises:
        UserError: other tokens than those of the text's model.
    """

    def __init__(self, decoder: DraftStepper, text_of: Signature) -> None:
        ours, theirs = decoder.signature, text_of
        same = ours.tokenizer == theirs.tokenizer or None in (ours.tokenizer, theirs.tokenizer)
        if ours.vocab_size != theirs.vocab_size or not same or ours.source is not None:
            expected = f"a draft model of the same {theirs.vocab_size} tokens, a decoder alone"
            raise UserError(
                expected, f"one of {ours.vocab_size} others", "choose a model with the same tokenizer", "graph"
            )
        self._decoder = decoder
        self._unread: list[int] = []  # of the text, by the decoder at its last certain place
        self._guessed: list[int] = []  # read behind that place
        self._certain, self._position = decoder.state(), decoder.position
        self._history: ArrayLike = ()

    def read(self, tokens: Sequence[int]) -> None:
        self._unread.extend(tokens)

    def kind(self) -> object:
        limit = self._decoder.signature.reach
        return "model" if limit is None or self._position + len(self._guessed) + len(self._unread) < limit else None

    def propose(self, most: int, request: Request) -> Sequence[int]:
        decoder, limit = self._decoder, self._decoder.signature.reach
        looks_back = request.sampler.sampling.looks_back
        last = self._catch_up(looks_back)
        if limit is not None:
            most = min(most, limit - self._position)
        ahead = replace(request, sampler=copy.copy(request.sampler))  # the draws to come, none of them taken
        tokens: list[int] = []
        for _ in range(most):
            self._guessed.append(tokens[-1] if tokens else last)
            logits, places = next_logits(decoder, TokenIds(np.array([self._guessed[-1:]])), request.limit)
            occurred = decoder.history() if looks_back else ()
            tokens.append(ahead.choose(logits[0], None if places is None else places[0], occurred))
        return tokens

    def _catch_up(self, looks_back: bool) -> int:
        """Let the decoder have read all of the text but its last token; that token."""
        *before, last = self._unread
        if self._guessed and before[: len(self._guessed)] == self._guessed:
            before = before[len(self._guessed) :]
        elif self._guessed:
            self._decoder.set_state(self._certain, self._position, self._history)
        if before:
            self._decoder.prefill(TokenIds(np.array([before])))
        self._certain, self._position = self._decoder.state(), self._decoder.position
        self._history = self._decoder.history() if looks_back else ()
        self._unread, self._guessed = [last], []
        return last
