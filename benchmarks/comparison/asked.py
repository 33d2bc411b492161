"""A timing program of any language: a process that is asked by lines, as benchmarks/embedding/protocol.hpp says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from t2r_runtime.errors import UserError

PATIENCE = 240  # seconds for an answer
CALM = {"TOKENIZERS_PARALLELISM": "false"}  # the library of Rust on one thread


class Asked:
    """A program that runs, and how it is asked; `asked` starts one."""

    def __init__(self, name: str, process: subprocess.Popen[str], said: IO[str]) -> None:
        self._name, self._process, self._said = name, process, said

    def check(self, count: int) -> list[int]:
        """The first `count` numbers that it computes. Raises UserError: it failed."""
        return [int(number) for number in self._ask("check", count)]

    def time(self, count: int) -> list[float]:
        """Milliseconds of `count` turns, after a few that do not count. Raises UserError: it failed."""
        return [float(number) for number in self._ask("time", count)]

    def line(self) -> str:
        """What it says next; nothing where it has ended, or is ended for its silence."""
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            timer.cancel()

    def failed(self) -> UserError:
        """An error with the last line of what it complained of."""
        self._said.seek(0)
        lines = self._said.read().strip().splitlines() or ["nothing"]
        return UserError(f"an answer of {self._name}", lines[-1][:300], "run it by hand")

    def _ask(self, word: str, count: int) -> list[str]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word} {count}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self.failed() from error
        numbers = self.line().split()
        if len(numbers) != count:
            raise self.failed()
        return numbers


@contextlib.contextmanager
def asked(name: str, command: Sequence[str]) -> Iterator[Asked]:
    """A program that has said that it is ready, and ends with the context.

    Raises:
        UserError: it does not start, or says something else.
    """
    with tempfile.TemporaryFile("w+") as said:
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=said, text=True, env={**os.environ, **CALM}
            )
        except OSError as error:
            raise UserError(f"{name} to start", error.strerror or str(error), "install what it needs") from error
        try:
            program = Asked(name, process, said)
            if program.line() != "ready":
                raise program.failed()
            yield program
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # what was still to be written, to one that has ended
        process.communicate(timeout=20)
    if process.poll() is None:
        process.kill()
        process.wait()
