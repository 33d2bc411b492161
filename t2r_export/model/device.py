"""Device selection."""

from __future__ import annotations

import torch

from t2r_runtime.errors import UserError


def choose_device(name: str) -> torch.device:
    """Resolve `cpu`, `cuda` or `auto` (CUDA if available). Raises UserError if CUDA is requested but missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("a CUDA device", "none available to torch", "choose device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
