"""The scaling of Llama 3.1, as its model card describes it. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig, plain
from t2r_export.config.validation import need, number, size


@dataclass(frozen=True)
class Llama3Scaling(ScalingConfig):
    """Slow frequencies divided by the factor, fast ones kept, those between blended."""

    kind: ClassVar[str] = "llama3"

    factor: float
    low_freq_factor: float = 1.0  # frequencies with fewer turns over the original length are slow
    high_freq_factor: float = 4.0  # frequencies with more turns over the original length are fast
    original_max_positions: int = 8192

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            number(f"rotary {name}", getattr(self, name))
        size("rotary original_max_positions", self.original_max_positions, 1 << 31)
        need(
            self.high_freq_factor > self.low_freq_factor,
            "rotary high_freq_factor above low_freq_factor",
            f"{self.high_freq_factor} and {self.low_freq_factor}",
            "correct the rotary scaling",
        )

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        frequencies = plain(theta, pairs, size)
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = blend.clip(0, 1)
        return frequencies * blend + (1 - blend) * frequencies / self.factor
