"""A separate process per decoder, with its own memory and threads.

The process loads this module, comparison.runners and its engine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from comparison import remote
from comparison.runners import RUNNERS, Runner
from t2r_export.python import THIS
from t2r_runtime.errors import UserError

DISCARDED = 2  # warm-up tokens of a turn: threads wake up, caches refill


class Resident:
    """Base of the served objects."""

    def memory(self) -> dict[str, int]:
        """Bytes of this process, `resident` and `peak`; empty without /proc."""
        status = Path("/proc/self/status")
        if not status.exists():
            return {}
        values = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return {name: 1024 * int(values[key].split()[0]) for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}


class Measured(Resident):
    """A timed runner, served by the process. Arguments as for Worker."""

    def __init__(self, engine: str, path: Path, threads: int, capacity: int, options: Mapping[str, Any]) -> None:
        self._runner: Runner = RUNNERS[engine](path, threads, capacity, options)  # type: ignore[call-arg]

    def place(self, context: int) -> None:
        """Set the state to that after `context` tokens."""
        self._runner.place(context)

    def decode(self, tokens: int) -> list[float]:
        """Seconds of each of `tokens` steps after the placed context, without warm-up."""
        self._runner.back()
        for _ in range(DISCARDED):
            self._runner.token()
        seconds = []
        for _ in range(tokens):
            start = time.perf_counter()
            self._runner.token()
            seconds.append(time.perf_counter() - start)
        return seconds

    def read(self, tokens: int) -> float:
        """Seconds to read a prompt from the initial state."""
        start = time.perf_counter()
        self._runner.read(tokens)
        return time.perf_counter() - start

    def turn(self, tokens: int) -> float:
        """Seconds to read tokens after the placed context and to choose the next one."""
        self._runner.back()
        start = time.perf_counter()
        self._runner.go_on(tokens)
        return time.perf_counter() - start

    def first_token(self, prompt: int) -> None:
        """Read a prompt and choose one token."""
        self._runner.read(prompt)
        self._runner.token()


class Process:
    """An object of class `kind` in its own process; has its methods.

    Args:
        threads: threads per operator.
        engine: first constructor argument.
        opening: other constructor arguments.

    Raises:
        UserError: from `open`, the engine cannot open the model; from any call, it failed or its process died.
    """

    def __init__(self, kind: type, threads: int, engine: str, *opening: Any) -> None:
        self._engine, self._opening = engine, (engine, *opening)
        command = f"env OMP_NUM_THREADS={threads} {THIS}"
        self._process = remote.Worker(command, kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.close()

    def open(self) -> None:
        """Import the engine and load the model."""
        self._call("__init__", *self._opening)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._process.call(name, *arguments)
        except Exception as error:  # errors of any library
            received = error.received if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            advice = "leave that engine out, or give it fewer tokens or more memory"
            raise UserError(f"{self._engine} to {name.strip('_')}", " ".join(received.split()), advice) from error


class Worker(Process):
    """A `Measured` in its own process; has its methods.

    Args:
        engine: a key of RUNNERS.
        path: the model.
        threads: threads per operator.
        capacity: maximum number of tokens.
        options: other options of the runner.
    """

    def __init__(
        self, engine: str, path: Path, threads: int, capacity: int, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(Measured, threads, engine, path, threads, capacity, dict(options or {}))
