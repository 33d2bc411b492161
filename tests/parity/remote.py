"""A decoder in another Python: the same suite for an ONNX Runtime that no Python with torch can import.

`RemoteDecoder` has a Decoder's methods and hands each call to a process of that Python, which runs `serve` and imports
numpy and t2r_runtime alone. Calls and results are pickles on the pipe between them, in both of which we trust.
"""

from __future__ import annotations

import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import t2r_runtime
from t2r_runtime import Decoder

PROPERTIES = ("signature", "placement", "batch", "position")


class RemoteDecoder:
    """A Decoder whose graph runs in the Python that `command` starts.

    Raises:
        Whatever the Decoder there raises; EOFError where that process died.
    """

    def __init__(self, command: str, *arguments: Any, **options: Any) -> None:
        packages = str(Path(t2r_runtime.__file__).parents[1])  # last on the path: that Python has its own numpy
        program = f"import runpy, sys; sys.path.append({packages!r}); runpy.run_path({__file__!r}, run_name='__main__')"
        self._process = subprocess.Popen(
            [*shlex.split(command), "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Debian's build prints hundreds of lines there before the first graph
        )
        self._call("__init__", *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._call(name) if name in PROPERTIES else lambda *a, **k: self._call(name, *a, **k)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump((name, arguments, options), self._process.stdin)
        self._process.stdin.flush()
        result = pickle.load(self._process.stdout)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


def serve(calls: BinaryIO, results: BinaryIO) -> None:
    """Answer calls until the pipe ends. The first makes the decoder."""
    decoder: Any = None
    while True:
        try:
            name, arguments, options = pickle.load(calls)
        except EOFError:
            return
        try:
            if name == "__init__":
                result, decoder = None, Decoder(*arguments, **options)
            else:
                member = getattr(decoder, name)
                result = member(*arguments, **options) if callable(member) else member
        except Exception as error:
            result = error
        pickle.dump(result, results)
        results.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not print into the pickles
    serve(sys.stdin.buffer, answers)
