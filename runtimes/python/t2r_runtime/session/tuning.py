"""What was measured of sessions: how many threads a step graph gets where the caller does not say, by its bytes.

A step has hundreds of operators, and each ends when the last of its threads does: to wait for each other pays where a
thread has enough to read meanwhile. What a machine really likes says `t2r bench GRAPH --tune`, whose figures
BYTES_A_THREAD is from (docs/performance.md, "Threads and session options").
"""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

from t2r_runtime.errors import UserError, shown

MAX_THREADS = 4096
# Tokens of the prompt of a process that reads one prompt: to open the prefill graph takes as long as that many steps.
PREFILL_FROM = 33
BYTES_A_THREAD = 2 << 20  # of weights
COUNTED = ("cpu", "xnnpack", "dnnl")  # providers whose threads are ONNX Runtime's own, which this module counts
DO = "leave it out for as many as the graph's size asks for"


def threads_for(path: Path, provider: str, asked: int | None) -> int | None:
    """Threads inside an operator of the step graph at `path`; None leaves them to ONNX Runtime: one a physical core.

    Args:
        asked: what the caller wants; None is for this module to say.

    Raises:
        UserError: `asked` is not a number of threads.
    """
    if asked is not None:
        if type(asked) is not int or not 1 <= asked <= MAX_THREADS:
            raise UserError(f"a number of threads from 1 to {MAX_THREADS}", shown(asked), DO, "provider")
        return asked
    all_cores = usable_cores()
    if provider not in COUNTED:
        return all_cores
    wanted = max(1, weight_bytes(path) // BYTES_A_THREAD)
    # of cores that are counted twice, since they run two threads each, a half are cores
    return wanted if wanted <= (all_cores or os.cpu_count() or 1) // 2 else all_cores


def usable_cores() -> int | None:
    """The cores that this process may use where that is not all of them: ONNX Runtime counts the machine's."""
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return None
    usable = len(os.sched_getaffinity(0))
    return usable if usable < (os.cpu_count() or usable) else None


def weight_bytes(path: Path) -> int:
    """About what the weights of the graph at `path` take: its file, and those of weights beside it."""
    total = 0
    for file in (path, *path.parent.glob(f"{glob.escape(path.name)}.*.data")):
        with contextlib.suppress(OSError):  # a link to nowhere or to itself: whoever opens the graph says so
            total += file.stat().st_size
    return total
