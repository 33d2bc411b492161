"""LongRoPE (Ding et al. 2024, arXiv 2402.13753). Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig
from t2r_export.config.validation import MAX_WHOLE, need, number, size


@dataclass(frozen=True)
class LongropeScaling(ScalingConfig):
    """Divides each frequency by its own factor, and scales up cosines and sines, and thus scores.

    Texts longer than `original_max_positions` use `long_factors` from their first token on. Stored keys cannot be
    rotated again, so a model with both sets ends at that length; a model for longer texts has only the long factors.
    """

    kind: ClassVar[str] = "longrope"

    factors: tuple[float, ...]  # one per pair
    attention_factor: float = 1.0  # factor of cosines and sines
    long_factors: tuple[float, ...] = ()  # for longer texts; empty: the same
    original_max_positions: int | None = None

    def __post_init__(self) -> None:
        for factor in (*self.factors, *self.long_factors):
            number("rotary factors", factor)
        number("rotary attention_factor", self.attention_factor)
        both = bool(self.long_factors) == (self.original_max_positions is not None)
        received = f"{len(self.long_factors)} and {self.original_max_positions}"
        need(both, "long_factors with original_max_positions, or neither", received, "correct the rotary scaling")
        if self.original_max_positions is not None:
            size("original_max_positions", self.original_max_positions, MAX_WHOLE)

    @property
    def end(self) -> int | None:
        return self.original_max_positions

    def for_length(self, length: int | None) -> LongropeScaling:
        if self.end is None:
            return self
        longer = length is not None and length > self.end
        factors = self.long_factors if longer else self.factors
        return replace(self, factors=factors, long_factors=(), original_max_positions=None)

    @property
    def magnitude(self) -> float:
        return self.attention_factor

    def check(self, theta: float, size: int) -> None:
        for factors in (self.factors, self.long_factors or self.factors):
            need(len(factors) == size // 2, f"{size // 2} rotary factors, one per pair", len(factors), "correct them")

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        return 1.0 / (pairs.new_tensor(self.factors) * theta ** (pairs / size))
