"""A decoder or an encoder in another process, which may be another Python with another ONNX Runtime.

One process holds one ONNX Runtime, some providers come with their own, and some end the process that asks them for what
they cannot do. `SubprocessDecoder` is a Stepper and hands each call to a process that runs t2r_export.providers.served.
Calls and results are pickles on the pipe between the two, in both of which we trust.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_export.python import THIS
from t2r_export.python import start as start_python
from t2r_runtime import Decoder, Translator, UserError
from t2r_runtime.contract.signature import Signature
from t2r_runtime.session.stepper import Ids

SERVED = str(Path(__file__).with_name("served.py"))


class Worker:
    """A process of the Python that `command` starts, waiting for calls of the methods of a `kind`, which it makes.

    Raises:
        UserError: nothing starts.
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

    def history(self, row: int = 0) -> NDArray[np.int64]:
        tokens: NDArray[np.int64] = self._worker.call("history", row)
        return tokens

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


class SubprocessTranslator:
    """What reads sources as a Translator does, in another process as SubprocessDecoder."""

    def __init__(self, command: str, *arguments: Any, **options: Any) -> None:
        self._worker = Worker(command, Translator)
        self._worker.call("__init__", *arguments, **options)
        self.signature: Signature = self._worker.call("signature")

    def encode(self, sources: Iterable[ArrayLike]) -> dict[str, NDArray[Any]]:
        """As of the Translator."""
        return dict(self._worker.call("encode", list(sources)))

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def remote_versions(command: str, provider: str) -> dict[str, str]:
    """t2r_runtime.session.providers.versions as the Python of `command` answers it, errors included."""
    worker = Worker(command)
    try:
        found: dict[str, str] = worker.call("versions", provider)
        return found
    finally:
        worker.close()
