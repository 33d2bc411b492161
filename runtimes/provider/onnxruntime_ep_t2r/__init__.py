"""T2rExecutionProvider, a plugin of ONNX Runtime: its name and the path of its library.

onnxruntime.register_execution_provider_library(get_ep_name(), get_library_path())
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def get_ep_name() -> str:
    """The name under which ONNX Runtime lists its devices."""
    return "T2rExecutionProvider"


def get_library_path() -> str:
    """Path of the shared library in this package."""
    (library,) = Path(__file__).parent.glob("*t2r_provider.*")
    return str(library)


def get_refusal() -> str:
    """Reason for the last refusal of a graph: what was expected, what was received. Empty if none was refused."""
    library = _library()
    library.t2r_provider_refusal.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(2048)
    size = library.t2r_provider_refusal(text, ctypes.c_size_t(len(text)))
    return text.raw[:size].decode(errors="replace")


def get_operations() -> int:
    """Number of operations in the last plan; fused nodes are one operation."""
    library = _library()
    library.t2r_provider_operations.restype = ctypes.c_size_t
    return int(library.t2r_provider_operations())


def get_threads() -> int:
    """Number of threads of the last run."""
    return int(_library().t2r_provider_threads())


def get_cores(root: str = "") -> int:
    """Number of cores that this process may use, by its affinity and by its control groups' files under `root`."""
    return int(_library().t2r_provider_cores(os.fsencode(root)))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(get_library_path())
