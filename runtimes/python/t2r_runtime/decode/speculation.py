"""Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) with a draft-check graph.

A run starts with the tokens accepted by the previous run, and the states include those only, so nothing is rolled back.
If acceptance is likely, the states include the draft tokens too, and no token is read twice; if one is rejected, the
previous states are still in the other buffers. A choice depends on the logits and the number of the draw only, so
sampled texts also equal those of single steps, unless two logits differ by less than the rounding. That is frequent in
graphs that round activations (fp16, w8, w4; docs/quantization.md, "Steps and prefill").
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.signature import MOST_CHECKED
from t2r_runtime.decode.drafts import Drafter, Lookup, Model
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.history import RECENT
from t2r_runtime.decode.pace import Pace
from t2r_runtime.decode.reader import Reader
from t2r_runtime.errors import UserError, shown
from t2r_runtime.session.states import LOGITS_ALONE, TOP_ALONE
from t2r_runtime.session.stepper import TokenIds

LOOKUP = "lookup"


def drafter_of(decoder: Reader, draft: object) -> Drafter:
    """The drafter of the argument `draft` of Decoder.generate.

    Raises:
        UserError: an invalid draft, or a model with other tokens.
    """
    if draft == LOOKUP:
        return Lookup()
    if isinstance(draft, Reader) and draft is not decoder:
        draft.reset(batch=1)
        return Model(draft, decoder.signature)
    if all(hasattr(draft, name) for name in ("read", "kind", "propose")):
        return cast(Drafter, draft)
    raise UserError("draft 'lookup', or another Decoder", shown(draft), "choose one of those", "sampling")


def tokens(decoder: Reader, request: Request, drafter: Drafter) -> Generator[int]:
    """Yield the tokens of a request, equal to those of t2r_runtime.decode.generate.tokens.

    Between tokens of one run the decoder has not read all earlier tokens; at the end it has read all but the last.
    """
    text, left = _Text(decoder, request, drafter), request.max_tokens
    text.begin()
    try:
        while True:
            for logits, places in text.run(left):
                token = text.choose(logits, places)
                left -= 1
                yield token
                if token in request.stop or left == 0:
                    return
                if text.diverged:
                    break
            text.settle()
    finally:
        text.finish()


class _Text:
    """The state of one text: accepted tokens to be read, and draft tokens after them."""

    def __init__(self, decoder: Reader, request: Request, drafter: Drafter) -> None:
        self._decoder, self._request, self._drafter = decoder, request, drafter
        self._pace = Pace(decoder.run_times)
        few = 0 < request.limit <= (decoder.signature.top_k or 0)
        self._wanted = TOP_ALONE if few else LOGITS_ALONE
        self._looks_back = request.sampler.sampling.looks_back
        self._reach = decoder.signature.reach
        self._occurred: list[int] = []
        self._waiting: list[int] = []  # accepted before this run, which starts with them
        self._guesses: list[int] = []  # draft tokens after those
        self._kind: object = None
        self._trusted = False  # whether the states include the draft tokens
        self._new: list[int] = []  # chosen from this run's logits

    def begin(self) -> None:
        """Read the prompt except for its last token."""
        if self._request.all_but_last is not None:
            self._decoder._read(self._request.all_but_last, LOGITS_ALONE)
        self._waiting = [self._request.last]
        self._occurred = [*self._decoder.history().tolist(), *self._waiting]
        self._drafter.read(self._occurred)

    def run(self, left: int) -> list[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Read the waiting tokens, and draft tokens if they pay off.

        Args:
            left: maximum number of further tokens.

        Returns:
            Logits after the last waiting token and after each draft token; with their tokens if these are top-k logits.
        """
        waiting, self._waiting = self._waiting, []  # if the run fails, `finish` must not read them
        self._guesses = self._guessed(len(waiting), left)
        ids, read = TokenIds(np.array([[*waiting, *self._guesses]])), len(waiting)
        begun = time.perf_counter()
        if ids.array.size == 1:
            found = [array[:, np.newaxis] for array in self._decoder._read(ids, self._wanted)]
        else:
            self._trusted = self._pace.trusts(self._kind, len(self._guesses), read)
            found = self._decoder._check(ids, ids.array.size if self._trusted else read, self._wanted)
        self._pace.times.ran(ids.array.size, time.perf_counter() - begun)
        self._waiting = waiting
        logits, *places = (array[0, read - 1 :] for array in found)
        return [(row, places[0][n] if places else None) for n, row in enumerate(logits)]

    def choose(self, logits: NDArray[Any], places: NDArray[Any] | None) -> int:
        """Choose the next token."""
        occurred = np.array(self._occurred[-RECENT:], np.int64) if self._looks_back else ()
        token = self._request.choose(logits, places, occurred)
        self._new.append(token)
        self._occurred.append(token)
        return token

    @property
    def diverged(self) -> bool:
        """Whether the last chosen token differs from the draft."""
        count = len(self._new)
        return count <= len(self._guesses) and self._new != self._guesses[:count]

    def settle(self) -> None:
        """Keep the chosen tokens for the next run, and undo the run if the states include rejected ones."""
        guesses, new, read = self._guesses, self._new, len(self._waiting)
        right = 0
        while right < min(len(guesses), len(new)) and guesses[right] == new[right]:
            right += 1
        if self._trusted and len(new) <= len(guesses):  # rejected, or the text ended earlier
            self._decoder._uncheck(read + len(guesses))
            self._waiting = [*self._waiting, *new]
        else:
            self._waiting = new[-1:] if self._trusted else new
        self._pace.judged(self._kind, len(guesses), read, right, len(new))
        self._drafter.read(new)
        self._new, self._guesses, self._trusted = [], [], False

    def finish(self) -> None:
        """Read all but the last token."""
        if self._new:
            self.settle()
        if self._waiting[:-1]:
            self._decoder._read(TokenIds(np.array([self._waiting[:-1]])), LOGITS_ALONE)

    def _guessed(self, waiting: int, left: int) -> list[int]:
        """Draft tokens after `waiting` tokens, with at most `left` further tokens."""
        self._kind = self._drafter.kind()
        if self._kind is None or (depth := self._pace.depth(self._kind, waiting)) == 0:
            return []
        room = MOST_CHECKED if self._reach is None else min(MOST_CHECKED, self._reach - self._decoder.position)
        if (most := min(room - waiting, left - 1)) < 1:
            return []
        begun = time.perf_counter()
        found = list(self._drafter.propose(min(most, depth), self._request))
        if found:
            self._pace.guessed(len(found), time.perf_counter() - begun)
        return found
