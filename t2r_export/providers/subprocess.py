"""A decoder in another process, which may be another Python with another ONNX Runtime.

One process holds one ONNX Runtime, some providers come with their own, and some end the process that asks them for what
they cannot do. `SubprocessDecoder` is a Stepper and hands each call to a process that runs `serve` and imports
numpy and t2r_runtime alone. Calls and results are pickles on the pipe between the two, in both of which we trust.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pickle
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime import Decoder, UserError
from t2r_runtime.errors import printable
from t2r_runtime.providers import versions
from t2r_runtime.signature import Signature
from t2r_runtime.stepper import Ids


class Worker:
    """A process of the Python that `command` starts, waiting for calls of the methods of a `kind`, which it makes."""

    def __init__(self, command: str, kind: type = Decoder) -> None:
        # last on the path: that Python has its own numpy
        packages = [str(Path(inspect.getfile(c)).parents[c.__module__.count(".")]) for c in (Decoder, kind)]
        program = f"import runpy, sys; sys.path += {packages!r}; runpy.run_path({__file__!r}, run_name='__main__')"
        try:
            self._process = subprocess.Popen(
                [*shlex.split(command), "-c", program, kind.__module__, kind.__qualname__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # some builds print hundreds of lines there before the first graph
            )
        except (OSError, ValueError, IndexError) as error:
            raise UserError("a command that starts a Python", f"{command!r} ({error})", "correct it") from error

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """What the object there gives back or raises; `__init__` makes it, and `versions` needs none.

        Raises:
            UserError: the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((name, arguments, options), self._process.stdin)
            self._process.stdin.flush()
            result = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            code = self._process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise UserError("an answer from the provider", f"the end of its process: {how}", "see its traps") from error
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):  # the process died with a call half written
                    pipe.close()
        self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


class SubprocessDecoder:
    """A Stepper: a Decoder, opened with `arguments` and `options`, in the Python that `command` starts.

    Raises:
        Whatever the Decoder there raises; UserError where that process died.
    """

    def __init__(self, command: str, *arguments: Any, **options: Any) -> None:
        self._worker = Worker(command)
        self._worker.call("__init__", *arguments, **options)
        self.signature: Signature = self._worker.call("signature")
        self.placement: dict[str, int] = self._worker.call("placement")

    @property
    def batch(self) -> int:
        """As of the Decoder, and so are all methods but `close`."""
        return int(self._worker.call("batch"))

    @property
    def position(self) -> int:
        return int(self._worker.call("position"))

    def reset(self, batch: int | None = None) -> None:
        self._worker.call("reset", batch)

    def step(self, ids: Ids) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._worker.call("step", ids)
        return logits

    def prefill(self, ids: Ids) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._worker.call("prefill", ids)
        return logits

    def top_k(self, ids: Ids) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        logits, tokens = self._worker.call("top_k", ids)
        return logits, tokens

    def state(self) -> dict[str, NDArray[Any]]:
        return dict(self._worker.call("state"))

    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0) -> None:
        self._worker.call("set_state", states, position)

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def remote_versions(command: str, provider: str) -> dict[str, str]:
    """t2r_runtime.providers.versions as the Python of `command` answers it, errors included."""
    worker = Worker(command)
    try:
        found: dict[str, str] = worker.call("versions", provider)
        return found
    finally:
        worker.close()


def serve(calls: BinaryIO, results: BinaryIO, kind: Callable[..., Any] = Decoder) -> None:
    """Answer calls until the pipe ends. `__init__` makes the `kind` whose methods the others are."""
    served: Any = None
    while True:
        try:
            name, arguments, options = pickle.load(calls)
        except EOFError:
            return
        result: Any
        try:
            if name == "versions":
                result = versions(*arguments)
            elif name == "__init__":
                result, served = None, kind(*arguments, **options)
            else:
                member = getattr(served, name)
                result = member(*arguments, **options) if callable(member) else member
        except Exception as error:
            # ONNX Runtime's own errors do not unpickle where another one is installed, or none
            foreign = type(error).__module__.startswith("onnxruntime")
            result = UserError("a step", printable(error), "choose another provider") if foreign else error
        pickle.dump(result, results)
        results.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not print into the pickles
    serve(sys.stdin.buffer, answers, getattr(importlib.import_module(sys.argv[1]), sys.argv[2]))
