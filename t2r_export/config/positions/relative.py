"""Learned positions in attention scores. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import check_values, limited
from t2r_export.config.positions.base import PositionConfig, check_rotated
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


@dataclass(frozen=True)
class ShawConfig(PositionConfig):
    """A learned vector per distance, added to the key (Shaw et al. 2018, arXiv 1803.02155, eq. 4)."""

    kind: ClassVar[str] = "shaw"
    biases: ClassVar[bool] = True

    max_distance: int = limited(16, bounds=(1, MAX_DISTANCE))  # k: farther keys use the vector of this distance

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True)
class TransformerXLConfig(PositionConfig):
    """Projected sinusoids of distances, and biases u and v of q (Dai et al. 2019, arXiv 1901.02860, section 3.3).

    The number of sinusoids is the total size of all heads, which is the model's width in the paper.
    """

    kind: ClassVar[str] = "transformer_xl"
    biases: ClassVar[bool] = True

    def check(self, width: int) -> None:
        check_rotated("head_size", width, self.kind)


@dataclass(frozen=True)
class DATransformerConfig(PositionConfig):
    """Positive scores, scaled by a learned sigmoid of the distance (Wu et al. 2021, arXiv 2010.06925)."""

    kind: ClassVar[str] = "da_transformer"
    biases: ClassVar[bool] = True
