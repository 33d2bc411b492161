"""Positions that are added to the embeddings. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.positions.base import PositionConfig, check_rotated
from t2r_export.config.validation import size


@dataclass(frozen=True)
class LearnedConfig(PositionConfig):
    """A trained vector per position."""

    kind: ClassVar[str] = "learned"
    embeds: ClassVar[bool] = True

    max_positions: int

    def __post_init__(self) -> None:
        size("max_positions", self.max_positions, 1 << 31)

    @property
    def end(self) -> int | None:
        return self.max_positions


@dataclass(frozen=True)
class SinusoidalConfig(PositionConfig):
    """sin and cos of position · 10000^(-2i/D) (Vaswani et al. 2017, section 3.5)."""

    kind: ClassVar[str] = "sinusoidal"
    embeds: ClassVar[bool] = True

    def check(self, width: int) -> None:
        check_rotated("width", width, self.kind)
