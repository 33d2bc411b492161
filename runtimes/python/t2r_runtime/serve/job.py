"""A prompt and the choices that continue it, between the event loop and the thread of an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.pool import Pool
from t2r_runtime.decode.text import Edit, Start, Text
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.writer import Piece, Writer

Event = Piece | ApiError
Keep = Callable[[NDArray[Any], dict[str, NDArray[Any]]], None]  # tokens read, states


class Job:
    """Work of an engine: the choices for one prompt.

    Args:
        ids: the prompt.
        max_tokens: maximum number of new tokens of each choice.
        samplings, writers: one per choice.
        seconds: time limit, after which the choices are cut.
        events: queue for the engine's output.
        start: states after a prefix of the prompt, which is not read again.
        scored: read the prompt token by token, with log-probabilities.
        keep: keeps states for later requests.
        marks: numbers of tokens of the prompt after which its states are kept, besides its end.
        edits: for each choice, what changes its logits; or none.
    """

    def __init__(
        self,
        ids: list[int],
        max_tokens: int,
        samplings: Sequence[Sampling],
        writers: Sequence[Writer],
        seconds: float,
        events: asyncio.Queue[Event],
        start: Start | None = None,
        scored: bool = False,
        keep: Keep | None = None,
        marks: Sequence[int] = (),
        edits: Sequence[Edit] = (),
    ) -> None:
        self.ids, self.max_tokens, self.samplings, self.writers = ids, max_tokens, samplings, writers
        self.seconds, self.start, self.scored, self.keep, self.marks = seconds, start, scored, keep, marks
        self.edits = edits
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.first_token: float | None = None
        self.keep_prompt: Callable[[], object] | None = None  # called when the first token is chosen
        self.cached = 0 if start is None else len(start.history)
        self.events = events

    @property
    def generated(self) -> int:
        """Number of generated tokens of all choices."""
        return sum(writer.generated for writer in self.writers)

    def add_to(self, pool: Pool, on_read: Callable[[Decoder], None] | None) -> list[Text]:
        """Add the choices to a pool. Raises UserError as Pool.add does."""
        watches = [writer.watch for writer in self.writers if writer.watches]
        new, marks = self.ids[self.cached :], [mark - self.cached for mark in self.marks]
        more = watches, self.scored, on_read, marks, self.edits
        return pool.add(new, self.max_tokens, self.samplings, self.start, *more)
