"""Learned attention spans. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import MixerConfig
from t2r_export.config.options import check_values, option
from t2r_export.config.positions import PositionConfig
from t2r_export.config.validation import need, size


@dataclass(frozen=True)
class SpanConfig(MixerConfig):
    """Softmax attention with a learned span per head (Sukhbaatar et al. 2019, arXiv 1905.07799)."""

    kind: ClassVar[str] = "span"
    takes_norm_after: ClassVar[bool] = False  # the states store keys before the rotation
    takes_sink: ClassVar[bool] = False

    span: int = option("Maximum attention span in tokens, including the current one.")
    ramp: int = option("Length in tokens of the soft mask's ramp from 1 to 0 beyond the span.", 32)
    span_loss: float = option("Weight of the mean span in the loss.", 0.02, bounds=(0, math.inf))
    folded: bool = False  # masks are constant, and each kv head has its own buffer length
    spans: tuple[int, ...] = ()  # the buffer lengths if folded

    def __post_init__(self) -> None:
        check_values(self)
        need(self.ramp <= self.span, f"a ramp of at most the span, {self.span}", self.ramp, "correct ramp")
        need(isinstance(self.spans, list | tuple), "spans to be a list", type(self.spans).__name__, "correct spans")
        object.__setattr__(self, "spans", tuple(self.spans))
        for length in self.spans:
            size("spans", length, self.span)

    @property
    def scored(self) -> bool:
        return not self.folded  # folded masks include the position terms

    def takes(self, positions: PositionConfig) -> bool:
        return positions.adds

    def check(self, heads: HeadsConfig) -> None:
        super().check(heads)
        wanted = heads.kv_heads if self.folded else 0
        need(len(self.spans) == wanted, f"{wanted} spans", f"{len(self.spans)}", "correct spans")
