"""Entry point of `t2r-run` and `python -m t2r_runtime`.

Handles Ctrl-C before the command line is imported, which takes a while: this module and its package import little.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USER = 2
INTERRUPTED = 130


def main() -> int:
    """Run `t2r-run` with the arguments of the process; returns the exit code."""
    try:
        return begin("t2r-run", "t2r_runtime.cli", "main")
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write("t2r-run: expected click; received none; pip install click jinja2\n")
        return USER


def begin(program: str, module: str, name: str) -> int:
    """Import a command line and run its entry point; returns the exit code."""

    def end(*_: object) -> NoReturn:
        os.write(2, f"{program}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, end)
    entry = getattr(importlib.import_module(module), name)
    try:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return int(entry())
    except KeyboardInterrupt:  # before or after the command, which handles Ctrl-C itself
        end()


if __name__ == "__main__":
    raise SystemExit(main())
