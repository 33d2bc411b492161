"""Options of glibc's malloc; no effect with another C library."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8  # mallopt parameters (malloc.h)


def choose(options: Mapping[int, int]) -> bool:
    """Set mallopt parameters. Returns whether the C library has mallopt."""
    libc = _library()
    for option, value in options.items():
        if libc is not None:
            libc.mallopt(ctypes.c_int(option), ctypes.c_int(value))
    return libc is not None


def trim() -> None:
    """Return freed memory to the system, also from within the heap."""
    if (libc := _library()) is not None:
        libc.malloc_trim(ctypes.c_size_t(0))


def _library() -> Any:
    """The C library of this process; None if it lacks these functions."""
    try:
        libc = ctypes.CDLL(None)
        return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
    except (OSError, TypeError):  # CDLL(None) fails on Windows
        return None
