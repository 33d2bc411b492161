"""Mixtures of experts. Imports without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import need, size

MAX_EXPERTS = 1024


@dataclass(frozen=True, kw_only=True)
class MoEConfig(PartConfig):
    """A mixture of dense feed-forwards without biases: each token uses the `top` experts.

    Top 1 as in Switch (Fedus et al. 2021, arXiv 2101.03961), renormalized weights as in Mixtral (Jiang et al. 2024,
    arXiv 2401.04088), or a sigmoid router; a bias may affect the choice only (DeepSeek-V3, arXiv 2412.19437).
    """

    kind: ClassVar[str] = "moe"
    mixes: ClassVar[bool] = False

    experts: int = limited(bounds=(1, MAX_EXPERTS))
    size: int  # hidden size of an expert
    top: int = 2
    renormalize: bool = True  # the weights of the chosen experts sum to 1
    router: str = limited("softmax", choices=("softmax", "sigmoid"))
    choice_bias: bool = False  # bias added to the weights for the choice only
    scale: float = limited(1.0, bounds=(0, math.inf))  # factor of the weights
    eps: float = limited(0.0, bounds=(0, 1))  # added to the divisor of the weights; not with softmax alone
    activation: str = limited("silu", choices=ACTIVATIONS)
    gated: bool = True
    balance: float = limited(0.0, bounds=(0, math.inf))  # weight of the load-balancing loss in training

    def __post_init__(self) -> None:
        super().__post_init__()
        size("top", self.top, self.experts)
        sigmoid = self.router == "sigmoid"
        sums = sigmoid or self.choice_bias or not self.eps
        need(sums, "router sigmoid or choice_bias with eps", self.router, "leave eps out")
        need(not (sigmoid and self.balance), "router softmax with balance", "sigmoid", "leave balance out")
