"""A process of its own for a decoder, so that memory and threads are its own and several can take turns.

Calls and answers are lines of JSON on the pipe between the two. The process is this Python with this module and
t2r_export.bench.runners in it, and whatever its engine imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from t2r_export.bench.runners import RUNNERS, Runner
from t2r_runtime.errors import UserError
from t2r_runtime.session import one_line

DISCARDED = 2  # tokens at the start of a turn: the threads wake up, and the caches are another candidate's


class Worker:
    """A decoder in a process of its own.

    Args:
        engine: a key of RUNNERS.
        path: its model.
        threads: inside an operator.
        capacity: tokens that it must hold at most.
        options: what else the engine's runner takes.

    Raises:
        UserError: the engine does not open the model, from `open`; the process died, from any call.
    """

    def __init__(
        self, engine: str, path: Path, threads: int, capacity: int, options: Mapping[str, Any] | None = None
    ) -> None:
        self._engine = engine
        self._opening = (engine, str(path), threads, capacity, dict(options or {}))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Import the engine and load the model."""
        self._call("open", *self._opening)

    def place(self, context: int) -> None:
        """Stand behind `context` tokens."""
        self._call("place", context)

    def decode(self, tokens: int) -> list[float]:
        """Seconds of each of `tokens` steps from where it was placed, after a few that do not count."""
        seconds: list[float] = self._call("decode", tokens)
        return seconds

    def read(self, tokens: int) -> float:
        """Seconds to read a prompt from the start."""
        return float(self._call("read", tokens))

    def first_token(self, prompt: int) -> None:
        """Read a prompt and choose one token."""
        self._call("first_token", prompt)

    def memory(self) -> dict[str, int]:
        """Resident bytes of the process, now and at the most."""
        bytes_: dict[str, int] = self._call("memory")
        return bytes_

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()

    def _call(self, name: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise UserError(
                f"an answer from {self._engine}",
                f"the end of its process, status {self._process.wait()}",
                "leave that engine out, or give it fewer tokens or more memory",
            )
        answer = json.loads(line)
        if "error" in answer:
            raise UserError(f"{self._engine} to {name}", answer["error"], "leave that engine out, or install another")
        return answer["result"]


def serve(calls: IO[str], answers: IO[str]) -> None:
    """Answer calls until the pipe ends."""
    runner: Runner | None = None
    for line in calls:
        name, *arguments = json.loads(line)
        answer: dict[str, Any]
        try:
            if name == "open":
                engine, path, threads, capacity, options = arguments
                runner = RUNNERS[engine](Path(path), threads, capacity, options)  # type: ignore[call-arg]
                answer = {"result": None}
            elif name == "memory":
                answer = {"result": memory()}
            else:
                assert runner is not None, "open comes first"
                answer = {"result": CALLS[name](runner, *arguments)}
        except Exception as error:  # whatever a foreign library raises
            answer = {"error": f"{type(error).__name__}: {one_line(error)}"}
        print(json.dumps(answer), file=answers, flush=True)


def _place(runner: Runner, context: int) -> None:
    runner.place(context)


def _decode(runner: Runner, tokens: int) -> list[float]:
    runner.back()
    for _ in range(DISCARDED):
        runner.token()
    seconds = []
    for _ in range(tokens):
        start = time.perf_counter()
        runner.token()
        seconds.append(time.perf_counter() - start)
    return seconds


def _read(runner: Runner, tokens: int) -> float:
    start = time.perf_counter()
    runner.read(tokens)
    return time.perf_counter() - start


def _first_token(runner: Runner, prompt: int) -> None:
    runner.read(prompt)
    runner.token()


CALLS = {"place": _place, "decode": _decode, "read": _read, "first_token": _first_token}


def memory() -> dict[str, int]:
    """`resident`: bytes of this process in memory now; `peak`: at the most. Both from /proc; empty without one."""
    status = Path("/proc/self/status")
    if not status.exists():
        return {}
    values = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return {name: 1024 * int(values[key].split()[0]) for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not print into the answers
    serve(sys.stdin, answers)
