"""One case in its own process, and its ending: by exit code or answer, by signal, by timeout, or by memory use."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20  # of CPU time, however busy the machine
PATIENCE = 120  # seconds of wall time in which a running case uses at least STIRS seconds of CPU time
STIRS = 0.1
MEMORY = 2 << 30  # bytes above the memory use at the start
ENDINGS = (
    "refused",
    "accepted",
    "exit 3",  # the command reports a bug
    "escaped",  # an exception other than T2RError
    "signal",
    "hang",  # more than SECONDS, or asleep
    "memory",  # more than MEMORY, or the system's limit
    "runtime refuses",  # rejects a graph that we wrote
    "silently wrong",  # accepted, with a wrong answer
)
BAD = ENDINGS[2:]


class SilentlyWrong(Exception):
    """Raised by a case with a wrong answer."""


@dataclass(frozen=True)
class Ending:
    """A case's ending and its last output."""

    kind: str  # one of ENDINGS
    said: str


def attempt(case: Callable[[Path], str]) -> Ending:
    """Run `case` in a fork, in a temporary empty folder.

    The case returns its ending; an exception is the ending `escaped`.
    """
    with tempfile.TemporaryDirectory(prefix="fuzz") as name, tempfile.TemporaryFile() as answer:
        folder = Path(name)
        gc.freeze()
        child = os.fork()
        if child == 0:
            _run(case, folder, answer)
        status, usage, late = _wait(child)
        answer.seek(0)
        said = answer.read().decode("utf-8", "replace")
    before, _, said = said.partition("\n")
    kind, _, text = said.partition("\n")
    if os.WIFSIGNALED(status):
        killed = signal.Signals(os.WTERMSIG(status))
        if late or killed == signal.SIGXCPU:
            return Ending("hang", text)
        if killed == signal.SIGKILL:  # only the system sends it
            return Ending("memory", "killed by the system")
        return Ending("signal", f"{killed.name} {text}")
    if usage.ru_maxrss * 1024 - int(before) > MEMORY:
        return Ending("memory", f"{usage.ru_maxrss >> 10} MB")
    return Ending(kind if kind in ENDINGS else "escaped", text)


def _run(case: Callable[[Path], str], folder: Path, answer: io.BufferedRandom) -> None:
    """The child's side: does not return."""
    os.setsid()
    answer.write(f"{_resident()}\n".encode())  # the fork's own memory, without file pages mapped by the parent
    answer.flush()
    # beyond it allocations fail, before the machine is out of memory
    limit = 4 * MEMORY + _virtual()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    spent = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, spent + 2 * SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MEMORY, MEMORY))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    faulthandler.disable()  # pytest's writes the traceback of a crash into the output of the tests
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    said = io.StringIO()
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            kind = case(folder)
    except BaseException as error:
        kind = "silently wrong" if isinstance(error, SilentlyWrong) else "escaped"
        said.write(traceback.format_exc())
    answer.write(f"{kind}\n{said.getvalue()[-2000:]}".encode("utf-8", "replace"))
    answer.flush()
    os._exit(0)


def _wait(child: int) -> tuple[int, resource.struct_rusage, bool]:
    """The child's exit status, its resource usage, and whether it was stopped because it slept."""
    since, used, late, pause = time.monotonic(), 0.0, False, 0.001
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return status, usage, late
        if time.monotonic() > since + PATIENCE and not late:
            before, used, since = used, _used(child), time.monotonic()
            if late := used < before + STIRS:
                os.killpg(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _used(session: int) -> float:
    """CPU seconds of all processes of a session and of their waited-for children."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def command(*words: object) -> str:
    """Run one of our commands in this process and return its ending."""
    from t2r_export.cli import main

    code = main([str(word) for word in words])
    sys.stdout.flush()
    return {0: "accepted", 1: "refused", 2: "refused", 3: "exit 3"}.get(code, f"escaped with {code}")


def whole(*words: object) -> None:
    """Run one of our commands, which must be accepted."""
    ending = command(*words)
    assert ending == "accepted", (words, ending)
