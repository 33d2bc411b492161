"""Where a model computes."""

from __future__ import annotations

import torch

from t2r_runtime.errors import UserError


def choose_device(name: str) -> torch.device:
    """`cpu`, `cuda`, or with `auto` CUDA where there is one. Raises UserError where CUDA is missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("a CUDA device", "none that torch can use", "choose device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
