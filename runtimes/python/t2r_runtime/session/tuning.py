"""Default number of threads, by the size of a step graph.

A step has hundreds of operators, and each synchronizes its threads, which pays off only if a thread reads enough
weights. BYTES_A_THREAD was measured with benchmarks/session_options.py (docs/performance.md).
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
from collections.abc import Iterator
from pathlib import Path

from t2r_runtime.checks import require_int

MAX_THREADS = 4096
# Prompt length from which a process that reads one prompt gains from opening the prefill graph.
PREFILL_FROM = 33
BYTES_A_THREAD = 2 << 20  # of weights
COUNTED = ("cpu", "t2r", "xnnpack", "dnnl")  # providers that use ONNX Runtime's thread pool, or one like it


def threads_for(path: Path, provider: str, threads: int | None) -> int | None:
    """Number of intra-op threads of the step graph at `path`; None is ONNX Runtime's default, one per physical core.

    Args:
        threads: the caller's choice; None chooses by the size of the graph.

    Raises:
        UserError: `threads` is out of range.
    """
    if threads is not None:
        require_int(threads, "a number of threads", 1, "provider", MAX_THREADS)
        return threads
    all_cores = usable_cores()
    if provider not in COUNTED:
        return all_cores
    wanted = max(1, weight_bytes(path) // BYTES_A_THREAD)
    # half of the logical cores: the number of physical cores if each has two threads
    return wanted if wanted <= (all_cores or os.cpu_count() or 1) // 2 else all_cores


def usable_cores(root: Path = Path("/")) -> int | None:
    """Number of cores that this process may use, or None if it may use all.

    Those of its affinity, or as many as the CPU time of its control groups, rounded up, if they are fewer.

    Args:
        root: where /proc and /sys are; another folder in tests.
    """
    if not hasattr(os, "sched_getaffinity"):  # macOS, Windows
        return None
    usable = len(os.sched_getaffinity(0))
    for time, period in _quotas(root):
        if 0 < time < period * usable:
            usable = math.ceil(time / period)
    return usable if usable < (os.cpu_count() or usable) else None


def _quotas(root: Path) -> Iterator[tuple[float, float]]:
    """CPU time and period of this process's control groups: version 2 (0::PATH) and 1 (NUMBER:cpu,cpuacct:PATH)."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2) if line.count(":") > 1 else ("", "other", "")
        if kinds and "cpu" not in kinds.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if kinds else "")
        names = [name for name in group.split("/") if name]
        for depth in range(len(names) + 1):
            folder = top.joinpath(*names[:depth])
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if kinds else ("cpu.max",)
            with contextlib.suppress(ValueError):  # "max": no quota
                time, period = map(float, " ".join(_text(folder / file) for file in files).split())
                yield time, period


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def weight_bytes(path: Path) -> int:
    """Approximate size of the weights of the graph at `path`: its file and its external data."""
    total = 0
    for file in (path, *path.parent.glob(f"{glob.escape(path.name)}.*.data")):
        with contextlib.suppress(OSError):  # a broken link: reported when the graph is opened
            total += file.stat().st_size
    return total
