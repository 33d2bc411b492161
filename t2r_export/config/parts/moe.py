"""Mixtures of experts. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import size

MAX_EXPERTS = 1024


@dataclass(frozen=True, kw_only=True)
class MoEConfig(PartConfig):
    """The `top` of so many experts for each token, each a dense feed-forward without biases.

    Top 1 of Switch (Fedus et al. 2021, arXiv 2101.03961), or renormalized ones of Mixtral (Jiang et al. 2024, arXiv
    2401.04088).
    """

    kind: ClassVar[str] = "moe"
    mixes: ClassVar[bool] = False

    experts: int = limited(bounds=(1, MAX_EXPERTS))
    size: int  # hidden, of an expert
    top: int = 2
    renormalize: bool = True  # softmax over the scores of the chosen, not of all
    activation: str = limited("silu", choices=ACTIVATIONS)
    gated: bool = True
    balance: float = limited(0.0, bounds=(0, math.inf))  # weight of the load-balancing loss in training

    def __post_init__(self) -> None:
        super().__post_init__()
        size("top", self.top, self.experts)
