"""Positions in attention scores that published models rarely have. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import check_values, limited
from t2r_export.config.positions.base import PositionConfig, check_rotated
from t2r_export.config.positions.relative import MAX_DISTANCE


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
