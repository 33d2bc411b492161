"""Feed-forward parts, which process each token on its own. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import limited
from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.config.parts.base import PartConfig


@dataclass(frozen=True)
class DenseConfig(PartConfig):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) if gated (Shazeer 2020); with a rank each matrix is a product.

    With `token_gate` the result is multiplied by sigmoid(w x), a scalar per token, as in Qwen1.5-MoE's shared expert.
    """

    kind: ClassVar[str] = "dense"
    mixes: ClassVar[bool] = False

    size: int  # hidden size
    activation: str = limited("gelu_tanh", choices=ACTIVATIONS)
    gated: bool = False
    bias: bool = True
    rank: int = 0  # rank of each matrix, W = outer inner; 0: not factored
    token_gate: bool = False

    def summary(self) -> str:
        return ""  # usually equal in all layers
