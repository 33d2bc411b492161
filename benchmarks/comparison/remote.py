"""Decoders and translators in another process, which may be another Python with another ONNX Runtime.

One process holds one ONNX Runtime, some providers come with their own build, and some abort the process on an operator
that they do not support. `Remote` forwards each call to a process that runs comparison/served.py. Calls and
results are pickles on the pipe between the two; both sides are trusted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import signal
import subprocess
from pathlib import Path
from typing import Any

from t2r_export.python import THIS
from t2r_export.python import start as start_python
from t2r_runtime import Decoder, UserError
from t2r_runtime.contract.signature import Signature

SERVED = str(Path(__file__).with_name("served.py"))


class Worker:
    """A process of the Python that `command` starts. It creates an object of class `kind` and calls its methods.

    Raises:
        UserError: `command` does not start.
    """

    def __init__(self, command: str = THIS, kind: type = Decoder) -> None:
        # last on the path: that Python has its own numpy
        packages = [str(Path(inspect.getfile(c)).parents[c.__module__.count(".")]) for c in (Decoder, kind)]
        # a Python before 3.11 still puts the current folder first
        paths = f"import sys; sys.path[:] = [p for p in sys.path if p] + {packages!r}"
        program = f"{paths}; import runpy; runpy.run_path({SERVED!r}, run_name='__main__')"
        self._process = start_python(
            *("-c", program, kind.__module__, kind.__qualname__),
            command=command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # some builds print hundreds of lines there before the first graph
        )

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return or raise what the method `name` does; `__init__` creates the object.

        Raises:
            UserError: the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((name, arguments, options), self._process.stdin)
            self._process.stdin.flush()
            result = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:  # the last: it ended amid an answer
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise UserError(
                "an answer from the provider", f"the end of its process: {how}", "see docs/providers.md"
            ) from error
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # the process died with a call half written
                    pipe.close()
        self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


class Remote:
    """An object of class `kind` in the Python that `command` starts, opened with `arguments` and `options`.

    Methods, properties and errors are those of `kind`: a remote Decoder is a Stepper, a remote Translator a
    SourceReader.

    Raises:
        UserError: the process ended.
    """

    def __init__(self, kind: type, command: str, *arguments: Any, **options: Any) -> None:
        self._kind, self._worker = kind, Worker(command, kind)
        self._worker.call("__init__", *arguments, **options)
        self.signature: Signature = self._worker.call("signature")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = callable(getattr(self._kind, name, None))
        return functools.partial(self._worker.call, name) if method else self._worker.call(name)

    def close(self) -> None:
        """End the process."""
        self._worker.close()
