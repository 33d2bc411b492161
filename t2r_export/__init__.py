"""Convert pretrained softmax Transformers to RNNs (T2R) and export them to ONNX with verified parity.

`t2r_export.load(path)` returns a `Model` with convert, finetune, export and verify (t2r_export.api).
"""

from __future__ import annotations

import t2r_runtime  # noqa: F401 (before any module imports onnxruntime, whose telemetry it turns off)
from t2r_export.version import __version__

TYPE_CHECKING = False  # importing typing is slow, and Ctrl-C would print a traceback (t2r_runtime.__main__)
if TYPE_CHECKING:
    from typing import Any

    from t2r_export.api import Model, load

__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import `load` and `Model` on first use, so that the command line starts without torch."""
    if name not in ("Model", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import t2r_export.api as api

    return getattr(api, name)
