"""The garbage collector kept from looking at torch where there is nothing to find: a quarter of a short command."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """While torch is imported, which makes no garbage: an eighth of the time that it takes."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def ending() -> None:
    """Before the process ends, which would look through all of torch first: a quarter of a second."""
    gc.freeze()
