"""Start other Python processes. They never import modules from the current folder.

With `-c` and `-m`, Python puts the current folder first on its path: a downloaded file named `onnxruntime.py` would run
in place of the library.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Any

from t2r_runtime.errors import UserError

ARGUMENTS = (sys.executable, "-P")  # start of a command line for other programs
THIS = shlex.join(ARGUMENTS)


def start(*arguments: str, command: str = THIS, **options: Any) -> subprocess.Popen[Any]:
    """Start the Python that `command` names, with closed standard input unless `options` set it.

    Args:
        arguments: arguments of that Python, such as `-m` and a module or `-c` and a program.
        command: a shell-quoted command; it may begin with `env NAME=VALUE`.
        options: options of subprocess.Popen.

    Raises:
        UserError: the command does not start.
    """
    environment = {**options.pop("env", os.environ), "PYTHONSAFEPATH": "1"}  # -P for any `command`
    try:
        return subprocess.Popen(
            [*shlex.split(command), *arguments], env=environment, **{"stdin": subprocess.DEVNULL, **options}
        )
    except (OSError, ValueError, IndexError) as error:
        raise UserError("a command that starts Python", f"{command!r} ({error})", "correct it") from error


def run(*arguments: str, **options: Any) -> tuple[int, str, str]:
    """Run this Python to completion; returns its exit code, stdout and stderr."""
    form: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace", **options}
    with start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **form) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    return process.returncode, out, err
