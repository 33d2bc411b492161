"""Averages in place of attention. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import option
from t2r_export.config.parts.base import PartConfig


@dataclass(frozen=True)
class AverageConfig(PartConfig):
    """The mean of the inputs so far, gated with the current input (AAN, Zhang et al. 2018, arXiv 1805.00631)."""

    kind: ClassVar[str] = "average"
    replaces_attention: ClassVar[bool] = True

    ffn_size: int = option("Hidden size of a feed-forward on the mean; 0: none.", 0)
