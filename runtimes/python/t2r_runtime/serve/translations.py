"""Translates the sources of all requests to one translator, in a thread.

Requests with the same options share a batch, which sentences join and leave between steps; requests with other options
wait until it is empty. Requests take turns, sentence by sentence, so that a short one does not wait for a long one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.serve.errors import ApiError, reported
from t2r_runtime.serve.worker import Worker, queue_full
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.copies import copying_of
from t2r_runtime.translate.search import Rules
from t2r_runtime.translate.sentences import Sentences
from t2r_runtime.translate.translator import Translator


@dataclass(eq=False)
class Request:
    """The sources of a request, and their translations."""

    sources: Sequence[NDArray[np.int64]]
    beam: Beam
    done: asyncio.Future[None]
    found: dict[int, list[Translation]] = field(default_factory=dict)
    entered: int = 0  # sources that have entered the batch

    @property
    def left(self) -> int:
        """Number of sources that wait."""
        return len(self.sources) - self.entered


class Translations(Worker[Request]):
    """Runs a translator.

    Args:
        rows: maximum number of sentences side by side.
        queue: maximum number of sentences that wait, beside those of the longest request.
    """

    def __init__(self, name: str, translator: Translator, rows: int, queue: int) -> None:
        super().__init__(f"translations {name}")
        copying_of(translator.signature)  # kept there, so that the first request does not wait for it
        self.translator, self._rows, self._queue = translator, rows, queue
        self._waiting: deque[Request] = deque()
        self._going: dict[int, tuple[Request, int]] = {}  # by the number of the sentence in the batch
        self._sentences: Sentences | None = None
        self._beam: Beam | None = None
        self._entered = 0  # sentences of this batch so far

    def submit(self, sources: Sequence[NDArray[np.int64]], beam: Beam) -> Request:
        """Add a request. Raises ApiError if too many sentences wait."""
        request = Request(sources, beam, asyncio.get_running_loop().create_future())
        with self._changed:
            waiting = [request.left, *(each.left for each in self._waiting)]
            if sum(waiting) - max(waiting) > self._queue:
                raise queue_full(self._queue, "sentences")
            if sources:
                self._waiting.append(request)
            self._changed.notify()
        request.done.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieve its exception
        if not sources:
            request.done.set_result(None)
        return request

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._gone or self._going or self._stopping):
                    self._changed.wait()
                if self._stopping and not (self._waiting or self._going):
                    return
                entering = self._take()
            try:
                self._step(entering)
            except Exception as error:
                answer = reported(error)
                for request in {request for request, _ in [*self._going.values(), *entering]}:
                    self._finish(request, answer)
                    self.cancel(request)  # its other sentences
                self._sentences, self._going = None, {}

    def _take(self) -> list[tuple[Request, int]]:
        """Remove cancelled requests; returns the sentences that enter the batch now."""
        gone, self._gone = set(self._gone), []
        self._waiting = deque(request for request in self._waiting if request not in gone)
        left = [number for number, (request, _) in self._going.items() if request in gone]
        if left and self._sentences is not None:
            self._sentences.drop(left)
            for number in left:
                del self._going[number]
        if not self._going:
            self._sentences, self._entered = None, 0
        entering: list[tuple[Request, int]] = []
        mixed = self._sentences is None or self._sentences.mixed
        while mixed and len(self._going) + len(entering) < self._rows and (request := self._next(len(entering))):
            self._beam = request.beam
            entering.append((request, request.entered))
            request.entered += 1
            self._waiting.remove(request)
            if request.left:
                self._waiting.append(request)
        return entering

    def _next(self, entering: int) -> Request | None:
        """The request of the sentence that enters the batch next, after `entering` others: they take turns.

        Requests with other options wait until the batch is empty; then it takes no more than `rows` sentences.
        """
        if self._sentences is None and not entering:
            return self._waiting[0] if self._waiting else None
        alike = [request for request in self._waiting if request.beam == self._beam]
        full = len(alike) < len(self._waiting) and self._entered + entering >= self._rows
        return alike[0] if alike and not full else None

    def _step(self, entering: list[tuple[Request, int]]) -> None:
        if not entering and not self._going:
            return
        if self._sentences is None:
            assert self._beam is not None
            rules = Rules(self._beam, self.translator.signature)
            self._sentences = Sentences(self.translator._graph, rules)
        sources = [request.sources[place] for request, place in entering]
        for pair in entering:
            self._going[self._entered] = pair
            self._entered += 1
        for number, found in self._sentences.step(sources, self.translator.encode(sources) if sources else {}).items():
            request, place = self._going.pop(number)
            request.found[place] = found
            if len(request.found) == len(request.sources):
                self._finish(request, None)

    def _finish(self, request: Request, error: ApiError | None) -> None:
        def finish() -> None:
            if request.done.done():
                return
            if error is None:
                request.done.set_result(None)
            else:
                request.done.set_exception(error)

        self._call(finish)
