"""Run a command and print its seconds, peak resident bytes and status.

On Linux, a process inherits the peak memory of its parent, so the parent must be a small process. This one imports
nothing of the project.
"""

from __future__ import annotations

import os
import sys
import time


def watch(command: list[str]) -> tuple[float, int, int]:
    """Seconds, peak resident bytes and exit code of a command; its output is discarded."""
    start = time.perf_counter()
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    child = os.posix_spawn(command[0], command, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, usage.ru_maxrss * unit, os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, watch(sys.argv[1:]))))
