"""Learned biases of attention scores. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import check_values, limited
from t2r_export.config.positions.base import PositionConfig
from t2r_export.config.validation import need

MAX_DISTANCE = 1 << 16  # limit for tables indexed by distance


@dataclass(frozen=True)
class T5Config(PositionConfig):
    """A learned bias per head and bucket of distances (Raffel et al. 2020, arXiv 1910.10683, section 2.1)."""

    kind: ClassVar[str] = "t5"
    biases: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    buckets: int = 32  # half of one distance each, half of exponentially growing ranges
    max_distance: int = limited(128, bounds=(1, MAX_DISTANCE))  # this and longer distances share the last bucket

    def __post_init__(self) -> None:
        check_values(self)
        need(self.buckets >= 2, "at least 2 buckets", self.buckets, "correct buckets")
        exact = self.buckets // 2
        expected = f"a max_distance of more than {exact}, the buckets of one distance each"
        need(self.max_distance > exact, expected, self.max_distance, "correct max_distance")
