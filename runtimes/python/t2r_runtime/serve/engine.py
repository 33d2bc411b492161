"""Runs the pool of one graph in a thread, and passes its output to the event loop."""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.pool import Pool
from t2r_runtime.decode.text import FAILED, STOP, Text
from t2r_runtime.errors import printable
from t2r_runtime.serve.errors import of, reported, wrong
from t2r_runtime.serve.job import Event, Job
from t2r_runtime.serve.metrics import Metrics
from t2r_runtime.serve.worker import Worker, queue_full
from t2r_runtime.serve.writer import Writer

Deliver = list[tuple[Job, Event]]


class Engine(Worker[Job]):
    """Generates the texts of all requests to one graph.

    Args:
        name: the model's name, for metrics.
        rows: maximum number of texts side by side.
        queue: maximum number of texts that wait.
        draft: for a text that is alone, as for Pool.

    Raises:
        UserError: as for Pool.
    """

    def __init__(
        self, name: str, decoder: Decoder, rows: int, queue: int, metrics: Metrics, draft: object = None
    ) -> None:
        super().__init__(f"engine {name}")
        self._name, self._rows, self._queue, self._metrics = name, rows, queue, metrics
        self._new_pool = functools.partial(Pool, decoder, rows, draft=draft, drafted=self._drafted)
        self._pool = self._new_pool()
        self._pool.add([0, 0, 0], 1, [Sampling()])  # opens the prefill graph before the first request
        while self._pool.busy:
            self._pool.step()
        self._new: deque[Job] = deque()
        self._jobs: dict[Text, tuple[Job, Writer]] = {}
        self._keeper = ThreadPoolExecutor(1, f"keep {name}")
        metrics.gauge("t2r_rows", lambda: self._rows, model=name)
        metrics.gauge("t2r_rows_running", lambda: min(self._texts, rows), model=name)
        metrics.gauge("t2r_texts_waiting", lambda: max(self._texts - rows, 0), model=name)

    def stop(self) -> None:
        """Finish all texts, keep their states, and end the thread."""
        super().stop()
        self._keeper.shutdown()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Add all jobs of a request. Raises ApiError if it has too many texts, or if too many wait."""
        texts, most = sum(len(job.writers) for job in jobs), self._rows + self._queue
        if texts > most:
            expected = f"a request of at most {most} texts, --rows {self._rows} and --queue {self._queue} together"
            raise wrong(expected, str(texts), "send several requests", "prompt" if len(jobs) > 1 else "n")
        with self._changed:
            if self._texts + texts > most:
                raise queue_full(self._queue, "texts")
            self._new.extend(jobs)
            self._changed.notify()

    @property
    def _texts(self) -> int:
        """Number of unfinished texts."""
        return sum(len(job.writers) for job in [*self._new]) + len(self._jobs)

    def _run(self) -> None:
        while self._take():
            started = time.monotonic()
            deliver: Deliver = []
            try:
                chosen = self._pool.step()
                for text, token in chosen:
                    if text in self._jobs:
                        self._advance(text, token, deliver)
                self._end_late(deliver)
            except Exception as error:
                answer = reported(error)
                deliver += [(job, answer) for job in {job for job, _ in self._jobs.values()}]
                self._pool, self._jobs = self._new_pool(), {}
            self._metrics.time("t2r_step_seconds", time.monotonic() - started, model=self._name)
            self._send(deliver)

    def _take(self) -> bool:
        """Wait for work, and add and remove jobs; returns whether to continue."""
        with self._changed:
            while not (self._new or self._gone or self._pool.busy or self._stopping):
                self._changed.wait()
            new, gone = list(self._new), set(self._gone)
            self._new.clear()
            self._gone.clear()
        for job in new:
            if job in gone:
                continue
            try:
                for text, writer in zip(job.add_to(self._pool, self._keep_prompt(job)), job.writers, strict=True):
                    self._jobs[text] = job, writer
            except Exception as error:
                self._send([(job, reported(error))])
        for text in [text for text, (job, _) in self._jobs.items() if job in gone]:
            self._drop(text)
        return self._pool.busy or not self._stopping or bool(self._new)

    def _drop(self, text: Text) -> None:
        self._jobs.pop(text, None)
        self._pool.remove(text)

    def _advance(self, text: Text, token: int | None, deliver: Deliver) -> None:
        job, writer = self._jobs[text]
        if text.ended == FAILED:
            assert text.error is not None
            for other in [other for other, (its, _) in self._jobs.items() if its is job]:
                self._drop(other)
            deliver.append((job, of(text.error)))
            return
        if job.keep_prompt is not None:
            job.keep_prompt()
            job.keep_prompt = None
        finish = text.ended
        if token is not None and writer.token(token, shown=text.ended != STOP):
            finish = STOP
        if token is not None and job.first_token is None:
            job.first_token = time.monotonic()
            self._metrics.time("t2r_first_token_seconds", job.first_token - job.started, model=self._name)
        if finish is None:
            deliver.append((job, writer.take()))
        else:
            self._end(text, finish, deliver)

    def _end(self, text: Text, finish: str, deliver: Deliver) -> None:
        """End a text; its answer ends when its states are kept, for a request that continues it at once."""
        job, writer = self._jobs[text]
        piece = writer.take(finish)
        if job.keep is None:
            deliver.append((job, piece))
        elif len(job.writers) == 1 and text.tokens:
            self._keeper.submit(self._keep, job, text.seen[:-1], self._pool.states(text), piece)
        else:
            self._keeper.submit(self._send, [(job, piece)])  # after the prompt's states are kept
        self._drop(text)

    def _keep_prompt(self, job: Job) -> Callable[[Decoder], None] | None:
        """A callback for the states of a prompt at its marks and its end.

        Those at its end are kept after the first token, not to delay it.
        """
        if job.keep is None:
            return None
        end = len(job.ids) - (job.max_tokens > 0)
        counts = iter([*job.marks, end])

        def keep(reader: Decoder) -> None:
            count = next(counts)
            if count > job.cached:
                kept = functools.partial(self._keep, job, job.ids[:count], reader.state(), None)
                job.keep_prompt = functools.partial(self._keeper.submit, kept)
                if count < end:
                    job.keep_prompt()

        return keep

    def _keep(self, job: Job, tokens: list[int], states: dict[str, NDArray[Any]], piece: Event | None) -> None:
        assert job.keep is not None
        try:
            job.keep(np.array(tokens, np.int64), states)
        except Exception as error:  # such as a full disk; the answer is valid without it
            sys.stderr.write(f"t2r-run: a state was not kept: {printable(error)}\n")
        if piece is not None:
            self._send([(job, piece)])

    def _end_late(self, deliver: Deliver) -> None:
        """End the texts that are past their deadline."""
        now = time.monotonic()
        for text, (job, _) in [*self._jobs.items()]:
            if now < job.deadline:
                continue
            if job.generated:
                self._end(text, "length", deliver)
            else:
                self._drop(text)
                late = wrong("a first token in time", f"none in {job.seconds:g} s", "try again later", status=503)
                deliver.append((job, late))

    def _drafted(self, checked: int, right: int) -> None:
        self._metrics.count("t2r_draft_tokens_total", checked, model=self._name)
        self._metrics.count("t2r_draft_tokens_right_total", right, model=self._name)

    def _send(self, deliver: Deliver) -> None:
        if deliver:
            self._call(_put_all, deliver)


def _put_all(deliver: Deliver) -> None:
    for job, event in deliver:
        job.events.put_nowait(event)
