"""A text of a pool of rows: its request and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import not_finite
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.history import RECENT, History
from t2r_runtime.errors import UserError

NOT_FINITE = -1  # replaces a token
STOP, LENGTH, FAILED, REMOVED = "stop", "length", "failed", "removed"  # why a text ended
Watch = Callable[[NDArray[np.float32], int], object]
Edit = Callable[[NDArray[np.float32], Sequence[int]], NDArray[np.float32]]  # all logits, chosen tokens -> logits


@dataclass(frozen=True)
class Start:
    """States that a text starts from: those of a prefix, or of a translator's source.

    Args:
        states: as for Decoder.set_state; None: the start of a text.
        position: number of tokens read, for models without a position state.
        history: tokens read, oldest first, for the penalties.
        adapter: the text's adapter, as for Decoder.adapt; None: that of the states or of the decoder.
    """

    states: Mapping[str, ArrayLike] | None
    position: int = 0
    history: Sequence[int] = ()
    adapter: str | None = None


@dataclass(eq=False)
class Text:
    """A text, and its newest token, which no step has read.

    Attributes:
        tokens: the chosen tokens.
        ended: why it ended; None if it is unfinished.
        error: the error that ended a failed text.
        hidden: for a draft head, `hidden` (N, hidden_size) before each of the last N tokens of the prompt.
    """

    request: Request
    left: int  # tokens to choose
    before: Sequence[int]  # tokens before the chosen ones; texts of one prompt share them
    token: int
    forced: int = 0  # tokens at the end of `before` still to be read by steps, in place of chosen ones
    watch: Watch | None = None
    edit: Edit | None = None
    tokens: list[int] = field(default_factory=list)
    ended: str | None = None
    error: UserError | None = None
    hidden: NDArray[np.float32] | None = None
    _history: History | None = None  # of the penalties

    @property
    def seen(self) -> list[int]:
        """All tokens."""
        return [*self.before, *self.tokens]

    @property
    def limit(self) -> int:
        """How many of the largest logits suffice for the next token; 0 means all."""
        return 0 if self.watch or self.edit else 1 if self.forced else self.request.limit

    def advance(self, logits: NDArray[np.float32], places: NDArray[np.int64] | None) -> int | None:
        """Take the next token of the prompt, or choose one.

        Args:
            logits: logits after `token`, all or those of the tokens `places`.

        Returns:
            The chosen token; None for a token of the prompt.
        """
        if self.forced:
            if not np.isfinite(logits.max()):  # max() propagates NaN
                return self._not_finite(not_finite())
            self.token, self.forced = self.before[-self.forced], self.forced - 1
            if self.watch is not None:
                self.watch(logits, self.token)
            if not self.forced and self.left == 0:
                self.ended = LENGTH
            return None
        occurred = self._recent() if self.request.sampler.sampling.looks_back else ()
        try:
            edited = logits if self.edit is None else self.edit(logits, self.tokens)
            self.token = self.request.choose(edited, places, occurred)
        except UserError as error:
            return self._not_finite(error)
        if self.watch is not None:
            self.watch(logits, self.token)
        self.tokens.append(self.token)
        if self._history is not None:
            self._history.add(np.array([[self.token]]))
        self.left -= 1
        if self.token in self.request.stop:
            self.ended = STOP
        elif self.left == 0:
            self.ended = LENGTH
        return self.token

    def _recent(self) -> NDArray[np.int64]:
        if self._history is None:  # converted once: a list of many tokens takes milliseconds, in each step of all rows
            self._history = History(1)
            self._history.add(np.array([self.before[-RECENT:]], np.int64))
        return self._history.of(0)

    def _not_finite(self, error: UserError) -> int:
        self.token = NOT_FINITE
        self.fail(error)
        return NOT_FINITE

    def fail(self, error: UserError) -> None:
        """End with an error."""
        self.ended, self.error = FAILED, error
