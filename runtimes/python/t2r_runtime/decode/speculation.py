"""Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) with a draft-check graph.

A run starts with the tokens accepted by the previous run, and the states include those only, so nothing is rolled back.
If acceptance is likely, the states include the draft tokens too, and no token is read twice; if one is rejected, the
previous states are still in the other buffers. A choice depends on the logits and the number of the draw only, so
sampled texts also equal those of single steps, unless two logits differ by less than the rounding. That is frequent in
graphs that round activations (fp16, w8, w4; docs/quantization.md, "Steps and prefill").
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.signature import HIDDEN, MOST_CHECKED
from t2r_runtime.decode.drafts import Drafter, Head, Lookup, Model
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
        kind = Model if draft.signature.hidden_state is None else Head
        return kind(draft, decoder.signature)
    if all(hasattr(draft, name) for name in ("read", "kind", "propose")):
        return cast(Drafter, draft)
    raise UserError("draft 'lookup', or another Decoder", shown(draft), "choose one of those", "sampling")


def tokens(decoder: Reader, request: Request, drafter: Drafter) -> Generator[int]:
    """Yield the tokens of a request, equal to those of t2r_runtime.decode.generate.tokens.

    Between tokens of one run the decoder has not read all earlier tokens; at the end it has read all but the last.
    """
    if request.all_but_last is not None and isinstance(drafter, Head):
        hidden = read_latest(decoder, request.all_but_last)
        drafter.follow(request.prompt.array[0, -len(hidden) :].tolist(), hidden)
    elif request.all_but_last is not None:
        decoder._read(request.all_but_last, LOGITS_ALONE)
    text = [*decoder.history().tolist(), request.last]
    ahead = Ahead(decoder, request, drafter, text, Pace(decoder.run_times))
    try:
        for left in range(request.max_tokens, 0, -1):
            logits, places = ahead.logits(left, request.limit)
            occurred = np.array(text[-RECENT:], np.int64) if request.sampler.sampling.looks_back else ()
            text.append(request.choose(logits, places, occurred))
            ahead.chose(text[-1])
            yield text[-1]
            if text[-1] in request.stop:
                return
    finally:
        ahead.finish()


def read_latest(decoder: Reader, ids: TokenIds) -> NDArray[np.float32]:
    """Read ids (1, T); returns `hidden` (N, hidden_size) after each of the latest, N at most `MOST_CHECKED`."""
    before, latest = ids.array[:, :-MOST_CHECKED], ids.array[:, -MOST_CHECKED:]
    if before.size:
        decoder._read(TokenIds(before), LOGITS_ALONE)
    hidden: NDArray[np.float32] = decoder._check(TokenIds(latest), latest.shape[1], (HIDDEN,))[0][0]
    return hidden


class Ahead:
    """The tokens of one text: those that are chosen and still to be read, and draft tokens after them.

    Args:
        decoder: has read the text except for its last token.
        text: the text so far.
        pace: chooses the numbers of draft tokens.
        counted: called with the numbers of draft tokens that a run checked, and of those that were right.
    """

    def __init__(
        self,
        decoder: Reader,
        request: Request,
        drafter: Drafter,
        text: Sequence[int],
        pace: Pace,
        counted: Callable[[int, int], object] = lambda checked, right: None,
    ) -> None:
        self._decoder, self._request, self._drafter, self._pace = decoder, request, drafter, pace
        self._head = drafter if isinstance(drafter, Head) else None
        self._counted, self._reach = counted, decoder.signature.reach
        self._waiting = [text[-1]]  # chosen before this run, which starts with them
        self._guesses: list[int] = []  # draft tokens after those
        self._kind: object = None
        self._trusted = False  # whether the states include the draft tokens
        self._new: list[int] = []  # chosen from this run's logits
        self._found: deque[tuple[NDArray[Any], NDArray[Any] | None]] = deque()  # those that are left
        self._hidden = np.empty((0, 0), np.float32)  # what the head read for each of these logits, for a draft head
        self._begun = False  # whether there were draft tokens: a model reads the text before the first, untimed
        drafter.read(text)

    def logits(self, left: int, limit: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Logits of the next token: from the last run if it has read the newest tokens as drafts, else from a new run.

        Args:
            left: maximum number of further tokens.
            limit: how many of the largest logits suffice; 0 means all.

        Returns:
            As t2r_runtime.decode.generate.next_logits, for the one text.
        """
        if not self._found or self._new != self._guesses[: len(self._new)]:
            self._settle()
            self._found = deque(self._run(left, 0 < limit <= (self._decoder.signature.top_k or 0)))
        return self._found.popleft()

    def chose(self, token: int) -> None:
        """Record the token that was chosen from the last logits."""
        self._new.append(token)

    def finish(self) -> None:
        """Read all but the last token."""
        self._settle()
        if self._waiting[:-1]:
            self._decoder._read(TokenIds(np.array([self._waiting[:-1]])), LOGITS_ALONE)

    def _run(self, left: int, few: bool) -> list[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Read the waiting tokens, and draft tokens if they pay off; returns the logits after the last waiting token
        and after each draft token."""
        waiting, self._waiting = self._waiting, []  # if the run fails, `finish` must not read them
        self._guesses = self._guessed(len(waiting), left)
        wanted = (*(TOP_ALONE if few else LOGITS_ALONE), *([HIDDEN] if self._head else []))
        ids, read = TokenIds(np.array([[*waiting, *self._guesses]])), len(waiting)
        begun = time.perf_counter()
        if ids.array.size == 1:
            found = [array[:, np.newaxis] for array in self._decoder._read(ids, wanted)]
        else:
            trusted = self._pace.trusts(self._kind, len(self._guesses), read)
            found = self._decoder._check(ids, ids.array.size if trusted else read, wanted)
            self._trusted = trusted
        self._pace.times.ran(ids.array.size, time.perf_counter() - begun)
        self._waiting = waiting
        logits, *places = (array[0, read - 1 :] for array in found)
        if self._head:
            self._hidden = places.pop()
        return [(row, places[0][n] if places else None) for n, row in enumerate(logits)]

    def _settle(self) -> None:
        """Keep the chosen tokens for the next run, and undo the run if the states include rejected ones."""
        guesses, new, read = self._guesses, self._new, len(self._waiting)
        if not new and not self._trusted:
            return
        right = 0
        while right < min(len(guesses), len(new)) and guesses[right] == new[right]:
            right += 1
        if self._trusted and len(new) <= len(guesses):  # rejected, or the text ended earlier
            self._decoder._uncheck(read + len(guesses))
            self._waiting = [*self._waiting, *new]
        else:
            self._waiting = new[-1:] if self._trusted else new
        self._pace.judged(self._kind, len(guesses), right, len(new))
        if guesses:
            self._counted(len(guesses), right)
        self._drafter.read(new)
        if self._head:
            self._head.follow(new, self._hidden[: len(new)])
        self._new, self._guesses, self._trusted = [], [], False
        self._found.clear()

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
        if found and self._begun:
            self._pace.guessed(len(found), time.perf_counter() - begun)
        self._begun = self._begun or bool(found)
        return found
