"""T2R's toolchain: a pretrained softmax Transformer becomes a recurrent decoder in ONNX, proved equal to its source.

In Python: `t2r_export.load(path)` gives a `Model` with convert, finetune, export and verify (t2r_export.api).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from t2r_export.version import __version__

if TYPE_CHECKING:
    from t2r_export.api import Model, load

__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """`load` and `Model` when they are asked for: the command line starts without torch."""
    if name not in ("Model", "load"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import t2r_export.api as api

    return getattr(api, name)
