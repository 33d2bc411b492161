"""The recurrent baselines, and averages in place of attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import check_values, option
from t2r_export.config.parts.base import PartConfig


@dataclass(frozen=True)
class LSTMConfig(PartConfig):
    """A layer of long short-term memory, as many units as the model is wide."""

    kind: ClassVar[str] = "lstm"

    def state_summary(self) -> str:
        return "h and c"


@dataclass(frozen=True)
class GRUConfig(PartConfig):
    """A layer of gated recurrent units, as many as the model is wide."""

    kind: ClassVar[str] = "gru"

    def state_summary(self) -> str:
        return "h"


@dataclass(frozen=True)
class AverageConfig(PartConfig):
    """The mean of a layer's inputs so far, gated with the present one (AAN, Zhang et al. 2018, arXiv 1805.00631)."""

    kind: ClassVar[str] = "average"

    ffn_size: int = option("Hidden size of a feed-forward on the mean; 0 is none.", 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_values(self)

    def summary(self) -> str:
        return f"the mean of all tokens{f', feed-forward of {self.ffn_size}' if self.ffn_size else ''}"

    def state_summary(self) -> str:
        return "the sum of its inputs"
