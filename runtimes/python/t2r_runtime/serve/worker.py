"""A worker thread of the event loop: the base of engines and translations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from t2r_runtime.serve.errors import ApiError

R = TypeVar("R")  # a request


class Worker(Generic[R]):
    """Runs `_run` in a thread, which waits on `_changed` and ends when `_stopping`.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._gone: list[R] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread, which delivers to this event loop."""
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """Finish all submitted requests, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def cancel(self, request: R) -> None:
        """Drop a request; its rows are free in the next step."""
        with self._changed:
            self._gone.append(request)
            self._changed.notify()

    def _run(self) -> None:
        raise NotImplementedError

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the event loop."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *args)


def queue_full(most: int, what: str) -> ApiError:
    """The error of a request that exceeds the queue."""
    message = f"expected at most {most} {what} that wait; received more; try again later"
    return ApiError(429, message, code="queue_full", retry=1)
