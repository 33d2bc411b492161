"""Lightweight and dynamic convolutions. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.short_conv import MAX_TAPS
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class LightConvConfig(PartConfig):
    """W_o conv(a ⊙ σ(b)), [a, b] = W x, with softmax-normalized kernels per head (Wu et al. 2019, arXiv 1901.10430)."""

    kind: ClassVar[str] = "light_conv"

    size: int  # channels; the model's width in the paper
    heads: int  # the channels of a head share a kernel
    taps: int = limited(bounds=(2, MAX_TAPS))  # kernel size
    dynamic: bool = False  # kernels computed from each token

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.size % self.heads == 0, f"heads to divide size={self.size}", self.heads, "correct heads")
