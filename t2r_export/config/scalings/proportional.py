"""Frequencies of a whole head, of which the last pairs do not rotate. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig, plain
from t2r_export.config.validation import need, number


@dataclass(frozen=True)
class ProportionalScaling(ScalingConfig):
    """The first `share` of the pairs keeps the whole head's frequencies; the others are 0 (LFM3, Gemma 4)."""

    kind: ClassVar[str] = "proportional"

    share: float
    factor: float = 1.0  # divisor of the frequencies

    def __post_init__(self) -> None:
        number("rotary share", self.share)
        number("rotary factor", self.factor)
        need(self.share <= 1, "a rotary share of at most 1", self.share, "correct it")

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        return plain(theta, pairs, size) / self.factor * (pairs < 2 * int(self.share * size // 2))
