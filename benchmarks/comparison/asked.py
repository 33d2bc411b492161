"""Timing programs in any language, controlled by lines on stdin as in benchmarks/embedding/protocol.hpp."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import IO

from t2r_runtime.errors import UserError

PATIENCE = 240  # seconds to wait for an answer
CALM = {"TOKENIZERS_PARALLELISM": "false"}


class Asked:
    """A running program; `asked` starts one."""

    def __init__(self, name: str, process: subprocess.Popen[str], said: IO[str]) -> None:
        self._name, self._process, self._said = name, process, said

    def check(self, count: int) -> list[int]:
        """The first `count` numbers that it computes. Raises UserError if it fails."""
        return [int(number) for number in self._ask("check", count)]

    def time(self, count: int) -> list[float]:
        """Milliseconds of `count` turns after a warm-up. Raises UserError if it fails."""
        return [float(number) for number in self._ask("time", count)]

    def line(self) -> str:
        """The next line of output; empty after its end. The program is killed after PATIENCE seconds of silence."""
        assert self._process.stdout is not None
        timer = threading.Timer(PATIENCE, self._process.kill)
        timer.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            timer.cancel()

    def failed(self) -> UserError:
        """An error with the last line of its stderr."""
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
    """Start a program and wait until it is ready; it ends with the context.

    Raises:
        UserError: it does not start or does not answer "ready".
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
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # pending writes to an ended process
        process.communicate(timeout=20)
    if process.poll() is None:
        process.kill()
        process.wait()
