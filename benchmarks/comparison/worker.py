"""A process of its own for a decoder, so that memory and threads are its own and several can take turns.

The process is this Python with this module and comparison.runners in it, and whatever its engine imports.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from comparison.runners import RUNNERS, Runner
from t2r_export.providers import subprocess
from t2r_export.python import THIS
from t2r_runtime.errors import UserError

DISCARDED = 2  # tokens at the start of a turn: the threads wake up, and the caches are another candidate's


class Resident:
    """What every served object says of its process."""

    def memory(self) -> dict[str, int]:
        """Resident bytes of this process, `resident` now and `peak` at the most; empty where there is no /proc."""
        status = Path("/proc/self/status")
        if not status.exists():
            return {}
        values = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return {name: 1024 * int(values[key].split()[0]) for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}


class Measured(Resident):
    """A runner and a clock: what the process serves. Arguments as of Worker."""

    def __init__(self, engine: str, path: Path, threads: int, capacity: int, options: Mapping[str, Any]) -> None:
        self._runner: Runner = RUNNERS[engine](path, threads, capacity, options)  # type: ignore[call-arg]

    def place(self, context: int) -> None:
        """Stand behind `context` tokens."""
        self._runner.place(context)

    def decode(self, tokens: int) -> list[float]:
        """Seconds of each of `tokens` steps from where it was placed, after a few that do not count."""
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
        """Seconds to read a prompt from the start."""
        start = time.perf_counter()
        self._runner.read(tokens)
        return time.perf_counter() - start

    def turn(self, tokens: int) -> float:
        """Seconds to read that many tokens behind where it was placed, and to choose the one that follows."""
        self._runner.back()
        start = time.perf_counter()
        self._runner.go_on(tokens)
        return time.perf_counter() - start

    def first_token(self, prompt: int) -> None:
        """Read a prompt and choose one token."""
        self._runner.read(prompt)
        self._runner.token()


class Process:
    """An object of the kind `kind` in a process of its own.

    Args:
        engine: the first argument that it is opened with. opening: the others.
        threads: inside an operator.

    Raises:
        UserError: the engine does not open the model, from `open`; it failed or its process died, from any call.
    """

    def __init__(self, kind: type, threads: int, engine: str, *opening: Any) -> None:
        self._engine, self._opening = engine, (engine, *opening)
        command = f"env OMP_NUM_THREADS={threads} {THIS}"
        self._process = subprocess.Worker(command, kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.close()

    def open(self) -> None:
        """Import the engine and load the model."""
        self._call("__init__", *self._opening)

    def memory(self) -> dict[str, int]:
        bytes_: dict[str, int] = self._call("memory")
        return bytes_

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return self._process.call(name, *arguments)
        except Exception as error:  # whatever a foreign library raises
            received = error.received if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            advice = "leave that engine out, or give it fewer tokens or more memory"
            raise UserError(f"{self._engine} to {name.strip('_')}", " ".join(received.split()), advice) from error


class Worker(Process):
    """A `Measured` in a process of its own; its methods are those.

    Args:
        engine: a key of RUNNERS.
        path: its model.
        threads: inside an operator.
        capacity: tokens that it must hold at most.
        options: what else the engine's runner takes.
    """

    def __init__(
        self, engine: str, path: Path, threads: int, capacity: int, options: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(Measured, threads, engine, path, threads, capacity, dict(options or {}))

    def place(self, context: int) -> None:
        self._call("place", context)

    def decode(self, tokens: int) -> list[float]:
        seconds: list[float] = self._call("decode", tokens)
        return seconds

    def read(self, tokens: int) -> float:
        return float(self._call("read", tokens))

    def turn(self, tokens: int) -> float:
        return float(self._call("turn", tokens))

    def first_token(self, prompt: int) -> None:
        self._call("first_token", prompt)
