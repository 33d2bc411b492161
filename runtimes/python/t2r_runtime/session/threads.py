"""What threads share and what they do not: one user at a time, and one first use.

ONNX Runtime lets other Python code run while it computes, so that two threads with one decoder would step from the same
states, and one of the steps would be lost without a word. A thread that finds the decoder in use does not wait for it:
waiting would hide that two texts are mixed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from t2r_runtime.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


class InUse:
    """Held by the thread that uses something; that thread may enter again, as `generate` does to step."""

    def __init__(self, what: str, do: str) -> None:
        self._what, self._do = what, do
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Raises UserError where another thread is inside."""
        if not self._lock.acquire(blocking=False):
            raise UserError(f"one thread at a time to use a {self._what}", "two at once", self._do, "state")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Used(Protocol):
    """What has methods of one thread at a time."""

    @property
    def in_use(self) -> InUse: ...


U = TypeVar("U", bound=Used)


def alone(method: Callable[Concatenate[U, P], R]) -> Callable[Concatenate[U, P], R]:
    """A method that is an error while another thread is in one of the same object."""

    @functools.wraps(method)
    def held(self: U, /, *given: P.args, **named: P.kwargs) -> R:
        with self.in_use:
            return method(self, *given, **named)

    return held


def once(function: Callable[P, R]) -> Callable[P, R]:
    """functools.cache, where threads that come during the first call wait for it instead of making a second."""
    lock, kept = threading.Lock(), functools.cache(function)

    @functools.wraps(function)
    def first(*given: P.args, **named: P.kwargs) -> R:
        with lock:
            return kept(*given, **named)  # type: ignore[arg-type]

    return first
