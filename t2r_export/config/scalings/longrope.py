"""LongRoPE (Ding et al. 2024, arXiv 2402.13753) with one set of factors. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig
from t2r_export.config.validation import need, number


@dataclass(frozen=True)
class LongropeScaling(ScalingConfig):
    """Each frequency divided by a factor of its own; cosines and sines, and so scores, are larger."""

    kind: ClassVar[str] = "longrope"

    factors: tuple[float, ...]  # one per pair
    attention_factor: float = 1.0  # of cosines and sines

    def __post_init__(self) -> None:
        for factor in self.factors:
            number("rotary factors", factor)
        number("rotary attention_factor", self.attention_factor)

    @property
    def magnitude(self) -> float:
        return self.attention_factor

    def check(self, theta: float, size: int) -> None:
        count = len(self.factors)
        need(count == size // 2, f"{size // 2} rotary factors, one per pair", count, "correct them")

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        return 1.0 / (pairs.new_tensor(self.factors) * theta ** (pairs / size))
