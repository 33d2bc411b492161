"""Reuse of freed memory between training steps."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

# options of glibc's mallopt (malloc.h): for training, and the defaults
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
KEEPING = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 1 << 28}
USUAL = {M_MMAP_MAX: 1 << 16, M_TRIM_THRESHOLD: 1 << 17, M_TOP_PAD: 1 << 17}


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Context in which glibc keeps freed memory in the process; without glibc, nothing changes.

    By default glibc returns tensors above 32 MiB, such as logits, to the system at once; the next step would allocate
    them again, and the system clear them page by page.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    _choose(libc, KEEPING)
    try:
        yield
    finally:
        _choose(libc, USUAL)
        libc.malloc_trim(ctypes.c_size_t(0))


def _glibc() -> Any:
    """The C library of this process; None if it lacks these options."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    except (OSError, TypeError):  # Windows has no library without a name
        return None


def _choose(libc: Any, options: dict[int, int]) -> None:
    for option, value in options.items():
        libc.mallopt(ctypes.c_int(option), ctypes.c_int(value))
