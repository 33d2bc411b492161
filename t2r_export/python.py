"""Other Pythons are started here alone: none of them takes a file of the current folder for a module.

Python puts the current folder first on the path of `-c` and `-m`. A file `onnxruntime.py` among somebody's downloads
would be run in the library's place.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from t2r_runtime.errors import UserError

ARGUMENTS = (sys.executable, "-P")  # of a command line that another program starts
THIS = shlex.join(ARGUMENTS)


def start(*arguments: str, command: str = THIS, **options: Any) -> subprocess.Popen[Any]:
    """A process of the Python that `command` starts, with its standard input closed unless `options` say otherwise.

    Args:
        arguments: of that Python, `-m` and a module, `-c` and a program.
        command: as for a shell; an `env NAME=VALUE` before the Python is passed on.
        options: of subprocess.Popen.

    Raises:
        UserError: nothing starts.
    """
    environment = {**options.pop("env", os.environ), "PYTHONSAFEPATH": "1"}  # as -P, for a `command` without it
    try:
        return subprocess.Popen(
            [*shlex.split(command), *arguments], env=environment, **{"stdin": subprocess.DEVNULL, **options}
        )
    except (OSError, ValueError, IndexError) as error:
        raise UserError("a command that starts a Python", f"{command!r} ({error})", "correct it") from error


def run(*arguments: str, **options: Any) -> tuple[int, str, str]:
    """Run this Python to its end: its exit code, and what it wrote to stdout and stderr."""
    form: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace", **options}
    with start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **form) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    return process.returncode, out, err
