"""Softmax attention: full, sliding window, and adaptive span. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import MEMORY, MixerConfig, require_none_merged
from t2r_export.config.options import check_values, option
from t2r_export.config.positions import PositionConfig
from t2r_export.config.validation import MAX_SIZE, need, size


@dataclass(frozen=True)
class SoftmaxConfig(MixerConfig):
    """Causal softmax attention with a key/value cache that grows by one token per step."""

    kind: ClassVar[str] = "softmax"
    grows: ClassVar[bool] = True

    memory: int = option(MEMORY, 0, causal=True)

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def lends(self) -> bool:
        return not self.memory

    def check_merged(self) -> None:
        require_none_merged(self, "memory")


@dataclass(frozen=True)
class WindowConfig(MixerConfig):
    """Sliding-window softmax attention with attention sinks (Xiao et al. 2023, arXiv 2309.17453)."""

    kind: ClassVar[str] = "window"

    window: int = option("Window size W: number of most recent tokens, including the current one.")
    sinks: int = option("Number of first tokens that stay visible (attention sinks).", 4, bounds=(0, MAX_SIZE))
    memory: int = option(MEMORY, 0)
    dilation: int = option("Of the window, only tokens at a distance that this number divides are visible.", 1)
    local: int = option("dilation: number of most recent tokens that are visible at any distance.", 1)

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("dilation", "local"):
            value = getattr(self, name)
            need(value <= self.window, f"{name} to be at most the window, {self.window}", value, f"correct {name}")
        need(self.local == 1 or self.dilation > 1, "a dilation with local", "none", "leave local out")


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
