"""Drafters of speculative decoding (t2r_runtime.decode.speculation). Drafts change the speed, not the text."""

from __future__ import annotations

import copy
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.contract.signature import MOST_CHECKED, Signature
from t2r_runtime.contract.state_spec import HIDDEN_STATE
from t2r_runtime.decode.generate import Request, next_logits
from t2r_runtime.decode.reader import Reader
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import TokenIds

LONGEST, SHORTEST = 6, 2  # n-gram lengths


class Drafter(Protocol):
    """Proposes draft tokens."""

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        ...

    def kind(self) -> object:
        """The kind of the next draft, for acceptance statistics; None if there is no draft."""
        ...

    def propose(self, most: int, request: Request) -> Sequence[int]:
        """Propose at most this many next tokens."""
        ...


class Lookup:
    """Prompt lookup (Saxena 2023; LLMA, Yang et al. 2023, arXiv 2304.04487): the continuation of the latest earlier
    occurrence of the longest suffix of 6 to 2 tokens.
    """

    def __init__(self) -> None:
        self._text = array("q")
        self._place: int | None = None  # end of the earlier occurrence
        self._size = 0  # its n-gram length

    def read(self, tokens: Sequence[int]) -> None:
        self._text.extend(tokens)
        text, self._place = np.frombuffer(self._text, np.int64), None
        ends = np.flatnonzero(text[:-1] == text[-1])  # a search takes microseconds, a table of n-grams 1 kB per token
        for size in range(SHORTEST, LONGEST + 1):
            ends = ends[ends >= size - 1]
            if not ends.size or not (ends := ends[text[ends - size + 1] == text[-size]]).size:
                break
            self._place, self._size = int(ends[-1]) + 1, size

    def kind(self) -> object:
        """The length of the matching suffix."""
        return None if self._place is None else self._size

    def propose(self, most: int, request: Request) -> Sequence[int]:
        return () if self._place is None else self._continued(self._place, most)

    def _continued(self, place: int, most: int) -> list[int]:
        """The tokens from `place`, repeated periodically past the end of the text."""
        period = len(self._text) - place
        return [self._text[place + n % period] for n in range(most)]


class Model:
    """A smaller model with the same tokens. It uses the text's random numbers, to match sampled texts too.

    Args:
        decoder: at the start of a text, used for these drafts only.
        text_of: signature of the text's model.

    Raises:
        UserError: the models have different tokens.
    """

    def __init__(self, decoder: Reader, text_of: Signature) -> None:
        _require_same_tokens(decoder.signature, text_of)
        self._decoder = decoder
        self._unread: list[int] = []  # accepted tokens that the decoder has not read
        self._guessed: list[int] = []  # draft tokens read after the accepted ones
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
        ahead = replace(request, sampler=copy.copy(request.sampler))  # a copy, so that no draw is consumed
        tokens: list[int] = []
        for _ in range(most):
            self._guessed.append(tokens[-1] if tokens else last)
            logits, places = next_logits(decoder, TokenIds(np.array([self._guessed[-1:]])), request.limit)
            occurred = decoder.history() if looks_back else ()
            tokens.append(ahead.choose(logits[0], None if places is None else places[0], occurred))
        return tokens

    def _catch_up(self, looks_back: bool) -> int:
        """Read the text except for its last token; returns that token."""
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


class Head:
    """A draft head (t2r_export.model.draft_head): reads each token of the text with what the model's head read before.

    After these it goes on with its own vectors, whose steps are undone. Of a text that it has not followed it reads the
    latest tokens only, since each takes a step.

    Args:
        decoder: of the head, at the start of a text, used for these drafts only.
        text_of: signature of the text's model.

    Raises:
        UserError: the model has other tokens or another width, or its graph no output `hidden`.
    """

    def __init__(self, decoder: Reader, text_of: Signature) -> None:
        _require_same_tokens(decoder.signature, text_of)
        spec = decoder.signature.hidden_state
        assert spec is not None
        if text_of.hidden_size != spec.shape[-1]:
            expected = f"a graph with the output hidden, {spec.shape[-1]} elements, for this draft head"
            received = "one without" if text_of.hidden_size is None else f"{text_of.hidden_size} elements"
            raise UserError(expected, received, "export the head's own model with --output-hidden", "graph")
        self._decoder, self._shape = decoder, spec.dims(1)
        self._unread: deque[tuple[int, NDArray[np.float32]]] = deque(maxlen=MOST_CHECKED)
        self._certain: tuple[dict[str, NDArray[np.generic]], int, ArrayLike] | None = None  # before its own vectors

    def read(self, tokens: Sequence[int]) -> None:
        """Ignored, since the head needs vectors too."""

    def follow(self, tokens: Sequence[int], hidden: NDArray[np.float32]) -> None:
        """Append tokens (N) to the text, each with the output `hidden` (N, hidden_size) before it."""
        self._unread.extend(zip(tokens, hidden.copy(), strict=True))

    def kind(self) -> object:
        limit, read = self._decoder.signature.reach, 0 if self._certain is None else self._certain[1]
        return "head" if self._unread and (limit is None or read + len(self._unread) < limit) else None

    def propose(self, most: int, request: Request) -> Sequence[int]:
        decoder, limit = self._decoder, self._decoder.signature.reach
        looks_back = request.sampler.sampling.looks_back
        if self._certain is not None:
            decoder.set_state(*self._certain)
        for token, hidden in self._unread:
            decoder._states.assign(HIDDEN_STATE, hidden.reshape(self._shape))
            found = next_logits(decoder, TokenIds(np.array([[token]])), request.limit)
        self._unread.clear()
        self._certain = decoder.state(), decoder.position, decoder.history() if looks_back else ()
        if limit is not None:
            most = min(most, limit - decoder.position + 1)
        ahead = replace(request, sampler=copy.copy(request.sampler))  # a copy, so that no draw is consumed
        tokens: list[int] = []
        while True:
            logits, places = found
            occurred = decoder.history() if looks_back else ()
            tokens.append(ahead.choose(logits[0], None if places is None else places[0], occurred))
            if len(tokens) == most:
                return tokens
            found = next_logits(decoder, TokenIds(np.array([tokens[-1:]])), request.limit)


def _require_same_tokens(ours: Signature, theirs: Signature) -> None:
    """Raise UserError for a draft model with other tokens than the text's."""
    same = ours.tokenizer == theirs.tokenizer or None in (ours.tokenizer, theirs.tokenizer)
    if ours.vocab_size != theirs.vocab_size or not same or ours.source is not None:
        expected = f"a draft model of a decoder with the same {theirs.vocab_size} tokens"
        do = "choose a model with the same tokenizer"
        raise UserError(expected, f"one of {ours.vocab_size} others", do, "graph")
