"""Softmax attention: full and sliding window. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.mixers.base import CACHE_BITS, CACHE_CHOICES, MEMORY, MixerConfig, require_none_merged
from t2r_export.config.options import check_values, option
from t2r_export.config.validation import MAX_SIZE, need


@dataclass(frozen=True)
class SoftmaxConfig(MixerConfig):
    """Causal softmax attention with a key/value cache that grows by one token per step."""

    kind: ClassVar[str] = "softmax"
    grows: ClassVar[bool] = True

    memory: int = option(MEMORY, 0, causal=True)
    cache_bits: int = option(CACHE_BITS, 32, CACHE_CHOICES, causal=True)

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
    cache_bits: int = option(CACHE_BITS, 32, CACHE_CHOICES)

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("dilation", "local"):
            value = getattr(self, name)
            need(value <= self.window, f"{name} to be at most the window, {self.window}", value, f"correct {name}")
        need(self.local == 1 or self.dilation > 1, "a dilation with local", "none", "leave local out")
