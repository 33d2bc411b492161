"""Several tokens a run: guesses are read together, and those that the model would have chosen are kept.

Speculative decoding (Leviathan et al. 2023, arXiv 2211.17192) with a draft-check graph, whose runs begin with the
tokens that the run before has accepted: the states take in those alone, so that nothing is rolled back. Where guesses
have been good, the run takes them in as well, and reads no token twice; if one of them is wrong after all, the states
from before it still lie in the other of the two buffers, and the next run begins again from there. A choice is a
function of the logits and of a numbered draw, so a sampled text, too, is the one that single steps would write; where
two logits are nearer than the rounding, either may be larger, as for any two ways of reading. In a graph that rounds
its activations (fp16, w8, w4) that happens often (docs/quantization.md, "Steps and prefill").
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.signature import MOST_CHECKED
from t2r_runtime.decode.drafts import Drafter, DraftStepper, Lookup, Model
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.history import RECENT
from t2r_runtime.decode.pace import Pace, Times
from t2r_runtime.errors import UserError, shown
from t2r_runtime.session.states import LOGITS_ALONE, TOP_ALONE
from t2r_runtime.session.stepper import Stepper, TokenIds

LOOKUP = "lookup"


class Checker(Stepper, Protocol):
    """A Decoder, which imports this module."""

    run_times: Times | None

    def _read(self, ids: TokenIds, wanted: tuple[str, ...]) -> list[NDArray[Any]]: ...

    def _check(self, ids: TokenIds, keep: int, wanted: tuple[str, ...]) -> list[NDArray[Any]]: ...

    def _uncheck(self, read: int) -> None: ...


def drafter_of(decoder: Checker, draft: object) -> Drafter:
    """What `draft` of Decoder.generate stands for.

    Raises:
        UserError: something else, or a model of other tokens.
    """
    if draft == LOOKUP:
        return Lookup()
    if isinstance(draft, type(decoder)) and draft is not decoder:
        draft.reset(batch=1)
        return Model(cast(DraftStepper, draft), decoder.signature)
    if all(hasattr(draft, name) for name in ("read", "kind", "propose")):
        return cast(Drafter, draft)
    raise UserError("draft 'lookup', or another Decoder", shown(draft), "choose one of those", "sampling")


def tokens(decoder: Checker, request: Request, drafter: Drafter) -> Generator[int]:
    """The tokens of a request, as they are chosen: those of t2r_runtime.decode.generate.tokens.

    Between two tokens of one run the decoder has read fewer than those before the latest; when the last was handed out,
    or nobody wants more, all but the last.
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
    """One text in the making: what is chosen and not read yet, and what is guessed behind it."""

    def __init__(self, decoder: Checker, request: Request, drafter: Drafter) -> None:
        self._decoder, self._request, self._drafter = decoder, request, drafter
        decoder.run_times = decoder.run_times or Times()
        self._pace = Pace(decoder.run_times)
        few = 0 < request.limit <= (decoder.signature.top_k or 0)
        self._wanted = TOP_ALONE if few else LOGITS_ALONE
        self._looks_back = request.sampler.sampling.looks_back
        self._reach = decoder.signature.reach
        self._occurred: list[int] = []
        self._waiting: list[int] = []  # chosen before this run, which begins with them
        self._guesses: list[int] = []  # behind those
        self._kind: object = None
        self._trusted = False  # whether the states have read the guesses too
        self._new: list[int] = []  # chosen from this run

    def begin(self) -> None:
        """Read the prompt but for its last token."""
        if self._request.all_but_last is not None:
            self._decoder._read(self._request.all_but_last, LOGITS_ALONE)
        self._waiting = [self._request.last]
        self._occurred = [*self._decoder.history().tolist(), *self._waiting]
        self._drafter.read(self._occurred)

    def run(self, left: int) -> list[tuple[NDArray[Any], NDArray[Any] | None]]:
        """Read what waits, and guesses behind it where there are some that pay.

        Args:
            left: how many tokens the text may still have.

        Returns:
            Logits behind the last token that waited and behind each guess, and where they are not all, their tokens.
        """
        waiting, self._waiting = self._waiting, []  # should the run fail, there is nothing to finish
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
        """The next token."""
        occurred = np.array(self._occurred[-RECENT:], np.int64) if self._looks_back else ()
        token = self._request.choose(logits, places, occurred)
        self._new.append(token)
        self._occurred.append(token)
        return token

    @property
    def diverged(self) -> bool:
        """Whether the token that was chosen last is another than the guess."""
        count = len(self._new)
        return count <= len(self._guesses) and self._new != self._guesses[:count]

    def settle(self) -> None:
        """Let what was chosen wait for the next run; take back what the states have read that was not."""
        guesses, new, read = self._guesses, self._new, len(self._waiting)
        right = 0
        while right < min(len(guesses), len(new)) and guesses[right] == new[right]:
            right += 1
        if self._trusted and len(new) <= len(guesses):  # one was wrong, or the text has ended before
            self._decoder._uncheck(read + len(guesses))
            self._waiting = [*self._waiting, *new]
        else:
            self._waiting = new[-1:] if self._trusted else new
        self._pace.judged(self._kind, len(guesses), read, right, len(new))
        self._drafter.read(new)
        self._new, self._guesses, self._trusted = [], [], False

    def finish(self) -> None:
        """Let the decoder have read all but the last token."""
        if self._new:
            self.settle()
        if self._waiting[:-1]:
            self._decoder._read(TokenIds(np.array([self._waiting[:-1]])), LOGITS_ALONE)

    def _guessed(self, waiting: int, left: int) -> list[int]:
        """What may come behind so many tokens that wait, of a text of at most so many more."""
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
