"""The other process of comparison.remote. Imports only numpy, t2r_runtime and the class to serve.

The toolchain need not be installed in that Python.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from t2r_runtime import UserError
from t2r_runtime.errors import printable


def serve(calls: BinaryIO, results: BinaryIO, kind: Callable[..., Any]) -> None:
    """Answer calls until the pipe ends: `__init__` creates an object of class `kind`, other names are its members."""
    served: Any = None
    while True:
        try:
            name, arguments, options = pickle.load(calls)
        except EOFError:
            return
        result: Any
        try:
            if name == "__init__":
                result, served = None, kind(*arguments, **options)
            else:
                member = getattr(served, name)
                result = member(*arguments, **options) if callable(member) else member
        except Exception as error:
            # errors of ONNX Runtime do not unpickle where another version or none is installed
            foreign = type(error).__module__.startswith("onnxruntime")
            result = UserError("a step", printable(error), "choose another provider") if foreign else error
        pickle.dump(result, results)
        results.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the pickles
    serve(sys.stdin.buffer, answers, getattr(importlib.import_module(sys.argv[1]), sys.argv[2]))
