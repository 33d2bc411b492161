"""Softmax attention: over everything, over the first tokens and the last, over learned spans. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers.base import MEMORY, MixerConfig, require_none_merged
from t2r_export.config.options import check_values, option
from t2r_export.config.validation import MAX_SIZE, flag, need, size


@dataclass(frozen=True)
class SoftmaxConfig(MixerConfig):
    """Causal softmax attention with a cache that grows by one key and value a step."""

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

    def summary(self) -> str:
        return f"memory of {self.memory}" if self.memory else ""

    def state_summary(self, heads: HeadsConfig) -> str:
        return "k and v of every token"


@dataclass(frozen=True)
class WindowConfig(MixerConfig):
    """Softmax attention over the first tokens and the last ones (Xiao et al. 2023, arXiv 2309.17453)."""

    kind: ClassVar[str] = "window"

    window: int = option("Number of last tokens that a query sees, its own among them: W.")
    sinks: int = option("Number of first tokens that every query sees beside the window.", 4, bounds=(0, MAX_SIZE))
    memory: int = option(MEMORY, 0)

    def __post_init__(self) -> None:
        check_values(self)

    def summary(self) -> str:
        memory = f", memory of {self.memory}" if self.memory else ""
        return f"the last {self.window} tokens and the first {self.sinks}{memory}"

    def state_summary(self, heads: HeadsConfig) -> str:
        return f"k and v of the last {self.window} tokens" + (f" and the first {self.sinks}" if self.sinks else "")


@dataclass(frozen=True)
class SpanConfig(MixerConfig):
    """Softmax attention whose heads learn how far they look back (Sukhbaatar et al. 2019, arXiv 1905.07799)."""

    kind: ClassVar[str] = "span"

    span: int = option("Largest attention span of a head, in tokens, its own among them.")
    ramp: int = option("Number of tokens over which the mask falls from 1 to 0 behind a head's span.", 32)
    span_loss: float = option("Weight of the largest span of all heads in the loss.", 0.02, bounds=(0, math.inf))
    folded: bool = False  # every kv head has a buffer of its own length, and the masks are constants
    spans: tuple[int, ...] = ()  # those lengths, where folded

    def __post_init__(self) -> None:
        check_values(self)
        need(self.ramp <= self.span, f"a ramp of at most the span, {self.span}", self.ramp, "correct ramp")
        flag("folded", self.folded)
        need(isinstance(self.spans, list | tuple), "spans to be a list", type(self.spans).__name__, "correct spans")
        object.__setattr__(self, "spans", tuple(self.spans))
        for length in self.spans:
            size("spans", length, self.span)

    def check(self, heads: HeadsConfig) -> None:
        wanted = heads.kv_heads if self.folded else 0
        need(len(self.spans) == wanted, f"{wanted} spans", f"{len(self.spans)}", "correct spans")

    def summary(self) -> str:
        spans = f"the last {', '.join(map(str, self.spans))}" if self.folded else f"up to the last {self.span}"
        return f"{spans} tokens, ramp {self.ramp}"

    def state_summary(self, heads: HeadsConfig) -> str:
        return f"k and v of the last {', '.join(map(str, self.spans or (self.span,)))} tokens"
