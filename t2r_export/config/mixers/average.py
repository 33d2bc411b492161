"""Averages in place of attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers.base import MixerConfig, option
from t2r_export.config.validation import amount


@dataclass(frozen=True)
class AverageConfig(MixerConfig):
    """The mean of a layer's inputs so far, gated with the present one (AAN, Zhang et al. 2018, arXiv 1805.00631)."""

    kind: ClassVar[str] = "average"
    attends: ClassVar[bool] = False

    ffn_size: int = option("Hidden size of a feed-forward on the mean; 0 is none.", 0)

    def __post_init__(self) -> None:
        amount("ffn_size", self.ffn_size)

    def summary(self) -> str:
        return f"the mean of all tokens{f', feed-forward of {self.ffn_size}' if self.ffn_size else ''}"

    def state_summary(self, attention: AttentionConfig | None) -> str:
        return "the sum of its inputs"
