"""Rotary positions. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from t2r_export.config.positions.base import PositionConfig, check_rotated
from t2r_export.config.scalings import ScalingConfig
from t2r_export.config.validation import need, number


@dataclass(frozen=True)
class RotaryConfig(PositionConfig):
    """Rotary positions (Su et al. 2021): pair i of a head's d' rotated dimensions, by position · theta^(-2i/d')."""

    kind: ClassVar[str] = "rotary"
    rotates: ClassVar[bool] = True

    theta: float = 10000.0
    scaling: ScalingConfig | None = None  # of the frequencies, for texts longer than in training
    size: int | None = None  # d', number of first dimensions of a head that rotate; None: all

    def __post_init__(self) -> None:
        number("rotary theta", self.theta)
        known = self.scaling is None or isinstance(self.scaling, ScalingConfig)
        need(known, "a rotary scaling of a kind, or none", repr(self.scaling), "correct the rotary scaling")
        if self.size is not None:
            check_rotated("rotary size", self.size, self.kind)

    @property
    def end(self) -> int | None:
        return None if self.scaling is None else self.scaling.end

    def for_length(self, length: int | None) -> RotaryConfig:
        """Positions for texts of this length, without an end; see `ScalingConfig.for_length`."""
        return self if self.scaling is None else replace(self, scaling=self.scaling.for_length(length))

    def rotated(self, head_size: int) -> int:
        """d' for a head of this size."""
        return head_size if self.size is None else self.size

    def check(self, width: int) -> None:
        check_rotated("head_size" if self.size is None else "rotary size", self.rotated(width), self.kind)
        need(self.rotated(width) <= width, f"a rotary size of at most {width}", self.size, "correct it")
        if self.scaling is not None:
            self.scaling.check(self.theta, self.rotated(width))
