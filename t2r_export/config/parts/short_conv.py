"""A gated short convolution in place of attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import flag, size

MAX_TAPS = 64  # a graph has a product for each


@dataclass(frozen=True)
class ShortConvConfig(PartConfig):
    """W_o (c ⊙ conv(b ⊙ u)), [b, c, u] = W x (LFM2, Liquid AI 2025, arXiv 2511.23404)."""

    kind: ClassVar[str] = "short_conv"

    taps: int = 3  # tokens that a channel sees, its own included
    bias: bool = False  # of both projections and of the convolution

    def __post_init__(self) -> None:
        super().__post_init__()
        size("taps", self.taps, MAX_TAPS, least=2)
        flag("bias", self.bias)

    def summary(self) -> str:
        return f"{self.taps} taps"

    def state_summary(self) -> str:
        return f"what the convolution read of the last {self.taps - 1} tokens"
