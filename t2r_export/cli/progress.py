"""Progress of long work, on stderr: a bar on a terminal, a plain line now and then in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from t2r_export.cli.output import note

LOG_SECONDS = 20.0  # between two lines in a log


@contextlib.contextmanager
def progress(what: str, total: int, seconds: float = LOG_SECONDS) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of steps done so far, of `total`.

    Args:
        what: is being done; stands before the numbers.
        seconds: between two lines in a log. Work that takes less time prints none.
    """
    if not sys.stderr.isatty():
        yield _lines(what, total, seconds)
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=what, leave=False) as bar:

        def move(done: int) -> None:
            bar.update(done - bar.n)

        yield move


def _lines(what: str, total: int, seconds: float) -> Callable[[int], None]:
    started = last = time.monotonic()

    def line(done: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            left = (now - started) / max(done, 1) * (total - done)
            note(f"{what}: {done} of {total}, {left:.0f} s left")

    return line
