"""Gates in place of a residual sum, as plain data. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.validation import flag, number


@dataclass(frozen=True)
class ResidualGateConfig:
    """The GRU-type gate of GTrXL (Parisotto et al. 2019, arXiv 1910.06764, section 3.2).

    Attributes:
        bias: the initial value of b_g. Positive values initialize the gate near the identity.
        relu: whether the part's output passes a ReLU before the gate, as in the paper.
    """

    bias: float = 2.0
    relu: bool = True

    def __post_init__(self) -> None:
        number("bias of a residual gate", self.bias, positive=False)
        flag("relu of a residual gate", self.relu)
