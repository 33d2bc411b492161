"""Zamba2's block of attention and a feed-forward over the residual stream and the embedding. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.attention import ACTIVATIONS, InsideConfig


@dataclass(frozen=True, kw_only=True)
class ConcatBlockConfig(InsideConfig):
    """Attention over the residual stream and the token's embedding, followed by a gated feed-forward, without a
    residual (Glorioso et al. 2024, arXiv 2411.15242, section 2)."""

    kind: ClassVar[str] = "concat_block"
    form: ClassVar[str] = "causal"

    size: int  # hidden size of the feed-forward
    activation: str = limited("gelu", choices=ACTIVATIONS)
    bias: bool = False  # of the feed-forward
