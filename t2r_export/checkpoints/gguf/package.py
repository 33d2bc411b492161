"""The package gguf, which is imported only to read a GGUF file."""

from __future__ import annotations

from typing import Any

from t2r_runtime.errors import UserError


def gguf_package() -> Any:
    """The package gguf. Raises UserError if it is missing."""
    try:
        import gguf
        import gguf.constants
        import gguf.quants
    except ImportError as error:
        do = "pip install gguf"
        raise UserError("the package gguf, to read a GGUF file", "a Python without it", do) from error
    return gguf
