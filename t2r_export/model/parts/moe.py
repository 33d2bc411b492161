"""A mixture of experts (Fedus et al. 2021, arXiv 2101.03961; Jiang et al. 2024, arXiv 2401.04088).

    s = W_r x      p = softmax(s)      y = Σ_{e in top-k of s} g_e E_e(x)      E(x) = down(act(gate(x)) ⊙ up(x))

g = p, or renormalized over the chosen, which is softmax of their scores. With the router `sigmoid` p = sigmoid(s).
Experts may be chosen by p + b (DeepSeek-V3, arXiv 2412.19437, eq. 12 to 16).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.parts import MoEConfig
from t2r_export.model.experts import Experts
from t2r_export.model.ops import State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step


class MoE(Part):
    """A router, and the matrices of all experts in two tensors."""

    config: MoEConfig
    choice_bias: Tensor | None

    def __init__(self, site: Site, config: MoEConfig) -> None:
        super().__init__(site, config)
        width, c = site.width, config
        self.router = nn.Linear(width, c.experts, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(c.experts, c.size * (2 if c.gated else 1), width))
        self.down = nn.Parameter(0.02 * torch.randn(c.experts, width, c.size))
        # a buffer, since no gradient reaches it
        self.register_buffer("choice_bias", torch.zeros(c.experts) if c.choice_bias else None)
        self._balance: Tensor | None = None

    @property
    def idle_parameters(self) -> int:
        return (self.config.experts - self.config.top) * (self.up[0].numel() + self.down[0].numel())

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        c, ops = self.config, step.ops
        scores = ops.linear(x, self.router.weight, None)
        if isinstance(scores, Tensor) and c.balance and self.training:
            self._balance = load_balance(scores, c.top)
        router = (c.router, self.choice_bias, c.scale, c.eps)
        experts = Experts(self.up, self.down, c.top, c.renormalize, c.activation, c.gated, *router)
        return ops.experts(x, scores, experts), {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_balance": None}  # torch only copies leaf tensors

    def units(self, kind: str) -> str | None:
        return "experts, of which a token reads some" if kind == "ffn" else None

    def penalty(self) -> Tensor:
        """The load-balancing loss of the last batch; the call resets it."""
        balance, self._balance = self._balance, None
        return torch.zeros(()) if balance is None else self.config.balance * balance


def load_balance(scores: Tensor, top: int) -> Tensor:
    """E Σ_e f_e P_e (Fedus et al. 2021, eq. 4 to 6), 1 if all experts have the same load.

    Args:
        scores: (N, E). top: experts of a token.

    f is the share of choices and P the mean probability of an expert.
    """
    experts = scores.shape[-1]
    counts = torch.bincount(scores.topk(top).indices.flatten(), minlength=experts).to(scores.dtype)
    return experts * (counts / counts.sum() * scores.softmax(-1).mean(0)).sum()
