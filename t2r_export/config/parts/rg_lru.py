"""Recurrent blocks with real-gated linear recurrent units. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.parts.short_conv import MAX_TAPS
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class RGLRUConfig(PartConfig):
    """Griffin's recurrent block, W_o (act(W_y x) ⊙ RG-LRU(conv(W_x x))) (De et al. 2024, arXiv 2402.19427)."""

    kind: ClassVar[str] = "rg_lru"

    size: int  # channels
    blocks: int  # blocks of the block-diagonal gates
    taps: int = limited(4, bounds=(2, MAX_TAPS))  # kernel size of the convolution
    activation: str = limited("gelu_tanh", choices=ACTIVATIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.size % self.blocks == 0, f"blocks to divide size={self.size}", self.blocks, "correct blocks")
