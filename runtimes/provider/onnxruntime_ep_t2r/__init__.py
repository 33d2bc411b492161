"""T2rExecutionProvider, a plugin of ONNX Runtime: where its library lies.

onnxruntime.register_execution_provider_library(get_ep_name(), get_library_path())
"""

from __future__ import annotations

import ctypes
from pathlib import Path


def get_ep_name() -> str:
    """The name under which ONNX Runtime lists its devices."""
    return "T2rExecutionProvider"


def get_library_path() -> str:
    """The library, which the package has been built with."""
    (library,) = Path(__file__).parent.glob("*t2r_provider.*")
    return str(library)


def get_refusal() -> str:
    """Why the last graph was left to another provider: what was expected, what was received. Empty if none was."""
    library = _library()
    library.t2r_provider_refusal.restype = ctypes.c_size_t
    text = ctypes.create_string_buffer(2048)
    size = library.t2r_provider_refusal(text, ctypes.c_size_t(len(text)))
    return text.raw[:size].decode(errors="replace")


def get_operations() -> int:
    """How many operations the last plan has: fewer than its graph has nodes, where several are run as one."""
    library = _library()
    library.t2r_provider_operations.restype = ctypes.c_size_t
    return int(library.t2r_provider_operations())


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(get_library_path())
