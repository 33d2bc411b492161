"""Positions divided by a factor (Chen et al. 2023, arXiv 2306.15595). Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.scalings.base import ScalingConfig, plain
from t2r_export.config.validation import number


@dataclass(frozen=True)
class LinearScaling(ScalingConfig):
    """All frequencies divided by the factor."""

    kind: ClassVar[str] = "linear"

    factor: float

    def __post_init__(self) -> None:
        number("rotary factor", self.factor)

    def frequencies(self, theta: float, pairs: Any, size: int) -> Any:
        return plain(theta, pairs, size) / self.factor
