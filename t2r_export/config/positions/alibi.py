"""Attention with linear biases. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.positions.base import PositionConfig
from t2r_export.config.validation import number


@dataclass(frozen=True)
class AlibiConfig(PositionConfig):
    """Scores decrease by the head's slope per token of distance (Press et al. 2021, arXiv 2108.12409)."""

    kind: ClassVar[str] = "alibi"
    biases: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    max_bias: float = 8.0  # the smallest slope is 2^-max_bias

    def __post_init__(self) -> None:
        number("alibi max_bias", self.max_bias)
