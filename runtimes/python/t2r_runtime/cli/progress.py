"""Progress on stderr: an updating line on a terminal, periodic lines in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

TERMINAL_SECONDS, LOG_SECONDS = 0.1, 20.0  # between two lines
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress(what: str, total: int, seconds: float | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of completed steps.

    Args:
        what: label before the numbers.
        total: number of steps; 0: unknown.
        seconds: minimum time between two lines; None chooses by the kind of output.
    """
    terminal = sys.stderr.isatty()
    pause = seconds if seconds is not None else TERMINAL_SECONDS if terminal else LOG_SECONDS
    started = last = time.monotonic()

    def advance(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= pause:
            last = now
            left = (now - started) / max(done, 1) * (total - done)
            line = f"{what}: {done} of {total}, {left:.0f} s left" if total else f"{what}: {done:,}"
            click.echo(_CLEAR + line if terminal else line, err=True, nl=not terminal)

    try:
        yield advance
    finally:
        if terminal and last != started:
            click.echo(_CLEAR, err=True, nl=False)
