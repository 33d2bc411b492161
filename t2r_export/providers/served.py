"""What runs in the other process of t2r_export.providers.subprocess: it imports numpy and t2r_runtime alone.

That Python need not have the toolchain, so nothing of it is imported here but the kind that the caller names.
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
from t2r_runtime.session.providers import versions


def serve(calls: BinaryIO, results: BinaryIO, kind: Callable[..., Any]) -> None:
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
