"""Gated short convolutions in place of attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.base import PartConfig

MAX_TAPS = 64  # the graph has a Mul per tap


@dataclass(frozen=True)
class ShortConvConfig(PartConfig):
    """W_o (c ⊙ conv(b ⊙ u)), [b, c, u] = W x (LFM2, Liquid AI 2025, arXiv 2511.23404)."""

    kind: ClassVar[str] = "short_conv"

    taps: int = limited(3, bounds=(2, MAX_TAPS))  # kernel size
    bias: bool = False  # of both projections and of the convolution
