"""Thread safety: exclusive use without waiting, and initialization once.

ONNX Runtime releases the GIL, so two threads stepping one decoder would read the same states and lose a step. The
second thread gets an error rather than waiting, which would hide that two texts are mixed.
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
    """A reentrant lock that raises UserError instead of waiting for another thread."""

    def __init__(self, what: str, do: str) -> None:
        self._what, self._do = what, do
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UserError(f"one thread at a time in a {self._what}", "two", self._do, "state")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Used(Protocol):
    """An object whose methods exclude other threads."""

    @property
    def in_use(self) -> InUse: ...


U = TypeVar("U", bound=Used)


def alone(method: Callable[Concatenate[U, P], R]) -> Callable[Concatenate[U, P], R]:
    """Decorate a method to raise UserError while another thread is in a decorated method of the same object."""

    @functools.wraps(method)
    def held(self: U, /, *given: P.args, **named: P.kwargs) -> R:
        with self.in_use:
            return method(self, *given, **named)

    return held


def once(function: Callable[P, R]) -> Callable[P, R]:
    """functools.cache, except that concurrent first calls wait for one result."""
    lock, kept = threading.Lock(), functools.cache(function)

    @functools.wraps(function)
    def first(*given: P.args, **named: P.kwargs) -> R:
        with lock:
            return kept(*given, **named)  # type: ignore[arg-type]

    return first
