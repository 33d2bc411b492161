"""The answer to a request: the pieces of all its choices, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import functools
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.job import Event, Job
from t2r_runtime.serve.models import Model, Served
from t2r_runtime.serve.request_options import RequestOptions
from t2r_runtime.serve.writer import Piece

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
T = TypeVar("T")
GONE = 499  # status if the client has disconnected
FEW = 64  # tokens with log-probabilities that are written at once
ENCODER = json.JSONEncoder(ensure_ascii=False)


class Gone(Exception):
    """The client disconnected."""


class Form(Protocol):
    """How choices are written as JSON."""

    kind: str  # the field "object"
    part_kind: str  # of parts of a stream
    prefix: str  # of ids

    def choice(self, piece: Piece) -> dict[str, Any]:
        """A choice, from all its pieces."""
        ...

    def first_parts(self, choices: int) -> list[dict[str, Any]]:
        """Parts of a stream before the first pieces."""
        ...

    def parts(self, piece: Piece) -> list[dict[str, Any]]:
        """Parts of a stream."""
        ...


class Answer:
    """Runs the jobs of a request.

    Raises:
        ApiError: as for Engine.submit.
    """

    def __init__(self, served: Served, model: Model, options: RequestOptions, form: Form, jobs: Sequence[Job]) -> None:
        self._served, self._model, self._options, self._form, self._jobs = served, model, options, form, jobs
        self._events: asyncio.Queue[Event] = jobs[0].events
        self._open = True
        self._engine = model.decoder()
        self._head = {"id": f"{form.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model.name}
        self.status = 200  # of an error that ended its stream
        self._engine.submit(jobs)

    @property
    def summary(self) -> dict[str, str | int]:
        """Its line in the log, besides the request's."""
        usage = self._usage()
        counts = {"prompt_tokens": usage["prompt_tokens"], "completion_tokens": usage["completion_tokens"]}
        cached = {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}
        return {"id": self._head["id"], "model": self._model.name, **counts, **cached}

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        choices: dict[int, Piece] = {}
        async for piece in self._pieces():
            so_far = choices.setdefault(piece.index, Piece(piece.index))
            so_far.text += piece.text
            so_far.tokens += piece.tokens
            so_far.logprobs += piece.logprobs
            so_far.finish = piece.finish
        made = [await self._written(self._form.choice, choices[index]) for index in sorted(choices)]
        return {**self._head, "object": self._form.kind, "choices": made, "usage": self._usage()}

    async def parts(self) -> AsyncIterator[dict[str, Any]]:
        """The parts of a stream. Raises ApiError, which ends it."""
        head = {**self._head, "object": self._form.part_kind}
        if self._options.stream_usage:
            head["usage"] = None
        try:
            for part in self._form.first_parts(sum(len(job.writers) for job in self._jobs)):
                yield {**head, "choices": [part]}
            async for piece in self._pieces():
                if piece.text or piece.logprobs or piece.finish or self._options.tokens:
                    for part in await self._written(self._form.parts, piece):
                        yield {**head, "choices": [part]}
            if self._options.stream_usage:
                yield {**head, "choices": [], "usage": self._usage()}
        except ApiError as error:
            self.status = error.status
            raise

    async def events(self) -> AsyncIterator[str]:
        """The answer as events; an error is the last event."""
        try:
            async for part in self.parts():
                yield event(part)
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield event(error.body)

    async def _pieces(self) -> AsyncIterator[Piece]:
        left = sum(len(job.writers) for job in self._jobs)
        while left:
            found = await self._events.get()
            if isinstance(found, ApiError):
                raise found
            left -= found.finish is not None
            yield found
        self._open = False
        metrics, name = self._served.metrics, self._model.name
        usage = self._usage()
        metrics.count("t2r_prompt_tokens_total", usage["prompt_tokens"], model=name)
        metrics.count("t2r_generated_tokens_total", usage["completion_tokens"], model=name)
        metrics.count("t2r_cached_tokens_total", usage["prompt_tokens_details"]["cached_tokens"], model=name)
        metrics.time("t2r_request_seconds", time.monotonic() - self._jobs[0].started, model=name)

    async def _written(self, write: Callable[[Piece], T], piece: Piece) -> T:
        """A choice as JSON; one with many log-probabilities, whose tokens are decoded, is written in another thread."""
        size = len(piece.logprobs)
        work = functools.partial(write, piece)
        return work() if size <= FEW else await self._served.encoders.run(size * (1 + (self._options.top or 0)), work)

    def _usage(self) -> dict[str, Any]:
        prompt, cached = sum(len(job.ids) for job in self._jobs), sum(job.cached for job in self._jobs)
        generated = sum(job.generated for job in self._jobs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def close(self) -> None:
        """Cancel unfinished jobs."""
        if self._open:
            for job in self._jobs:
                self._engine.cancel(job)


class Streamed(Protocol):
    """An answer as a stream of events."""

    status: int

    def events(self) -> AsyncIterator[str]:
        """The events; an error is the last one."""
        ...

    def close(self) -> None:
        """Cancel unfinished jobs."""
        ...


class Stream:
    """An HTTP response of events, closed when the client disconnects.

    Args:
        at_end: called with the status at the end.
    """

    def __init__(self, served: Served, answer: Streamed, at_end: Callable[[int], object]) -> None:
        self._served, self._answer, self._at_end = served, answer, at_end

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Respond, as an ASGI application."""

        async def body() -> None:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for each in self._answer.events():
                await send({"type": "http.response.body", "body": each.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await unless_gone(receive, body())
        except (Gone, OSError):
            self._served.metrics.count("t2r_cancelled_total")
            self._answer.status = GONE
        finally:
            self._answer.close()
            self._at_end(self._answer.status)


async def unless_gone(receive: Receive, work: Awaitable[Any]) -> Any:
    """Await `work`. Raises Gone as soon as the client disconnects."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def event(data: dict[str, Any], name: str | None = None) -> str:
    """One event of a stream."""
    return (f"event: {name}\n" if name else "") + f"data: {ENCODER.encode(data)}\n\n"
