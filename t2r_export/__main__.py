"""Where the programs `t2r` and `t2r-export` begin, and `python -m t2r_export`, which is `t2r`.

Imports nothing before Ctrl-C ends the process with one line: the command line itself takes a while to import.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130


def t2r() -> int:
    """Run `t2r` with the arguments of the process; returns the exit code."""
    return _begin("t2r", "main")


def export() -> int:
    """Run `t2r-export` with the arguments of the process; returns the exit code."""
    return _begin("t2r-export", "export_main")


def _begin(program: str, name: str) -> int:
    def end(*_: object) -> NoReturn:
        os.write(2, f"{program}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, end)
    from t2r_export import cli

    run: Callable[[], int] = getattr(cli, name)
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # in the few steps before and after a command, which handles its own
        end()


if __name__ == "__main__":
    raise SystemExit(t2r())
