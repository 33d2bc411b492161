"""YaRN (Peng et al. 2023, arXiv 2309.00071). Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig
from t2r_export.config.validation import flag, need, number, size


@dataclass(frozen=True)
class YarnScaling(ScalingConfig):
    """Divides slow frequencies by the factor, keeps fast ones, with a ramp over the pairs between (section 3.2), and
    scales up cosines and sines, and thus scores (section 3.4)."""

    kind: ClassVar[str] = "yarn"

    factor: float
    original_max_positions: int
    attention_factor: float | None = None  # factor of cosines and sines; None: the paper's, 0.1 ln(factor) + 1
    beta_fast: float = 32.0  # frequencies with more turns over the original length are fast
    beta_slow: float = 1.0  # frequencies with fewer turns are slow
    truncate: bool = True  # the ramp begins and ends at whole pairs

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            number(f"rotary {name}", getattr(self, name))
        if self.attention_factor is not None:
            number("rotary attention_factor", self.attention_factor)
        size("rotary original_max_positions", self.original_max_positions, 1 << 31)
        flag("rotary truncate", self.truncate)
        ordered = self.beta_fast > self.beta_slow
        need(ordered, f"rotary beta_fast above beta_slow={self.beta_slow:g}", self.beta_fast, "correct them")

    @property
    def magnitude(self) -> float:
        return larger(self.factor) if self.attention_factor is None else self.attention_factor

    def check(self, theta: float, size: int) -> None:
        need(theta > 1, "a rotary theta above 1 with yarn scaling", theta, "correct theta")

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        periods = theta ** (pairs / size)
        first, last = (self._pair(turns, theta, size) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        ramp = ((pairs / 2 - first) / (last - first if last != first else 0.001)).clip(0, 1)
        kept = 1 - ramp
        return 1.0 / (self.factor * periods) * (1 - kept) + 1.0 / periods * kept

    def _pair(self, turns: float, theta: float, size: int) -> float:
        """The (fractional) number of the pair with `turns` turns over the original length."""
        return size * math.log(self.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))


def larger(factor: float, scale: float = 1.0) -> float:
    """0.1 · scale · ln(factor) + 1, or 1 without scaling (section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
