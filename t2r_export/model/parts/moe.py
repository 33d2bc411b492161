"""A mixture of experts (Fedus et al. 2021, arXiv 2101.03961; Jiang et al. 2024, arXiv 2401.04088).

    s = W_r x      p = softmax(s)      y = Σ_{e in top-k of s} g_e E_e(x)      E(x) = down(act(gate(x)) ⊙ up(x))

g = p, or renormalized over the chosen, which is softmax of their scores. A step reads the weights of the chosen experts
alone; many tokens, which choose all of them, pass through every expert and weigh the others by 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.parts import MoEConfig
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.parts.dense import activate
from t2r_export.model.step import Step


class MoE(Part):
    """A router, and experts whose weights are rows of tables."""

    config: MoEConfig

    def __init__(self, site: Site, config: MoEConfig) -> None:
        super().__init__(site, config)
        width, c = site.width, config
        self.columns = c.size * (2 if c.gated else 1)  # of gate and up
        self.router = nn.Linear(width, c.experts, bias=False)
        self.up = nn.Parameter(0.02 * torch.randn(c.experts, width * self.columns))
        self.down = nn.Parameter(0.02 * torch.randn(c.experts, c.size * width))
        self._balance: Tensor | None = None

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        logits = ops.linear(x, self.router.weight, None)
        shares, chosen = self._route(logits, ops)
        if isinstance(logits, Tensor) and isinstance(chosen, Tensor) and self.config.balance and self.training:
            self._balance = load_balance(logits, chosen)
        return (self._all if ops.many else self._chosen)(x, shares, chosen, ops), {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_balance": None}  # torch copies no tensor that has a gradient to give

    def penalty(self) -> Tensor:
        """The load-balancing loss of the last batch, once."""
        balance, self._balance = self._balance, None
        return torch.zeros(()) if balance is None else self.config.balance * balance

    def _route(self, logits: T, ops: Ops[T]) -> tuple[T, T]:
        """Scores (N, experts) -> weights and numbers of the chosen experts, (N, top) each."""
        if not self.config.renormalize:
            return ops.top_k(ops.softmax(logits), self.config.top)
        best, chosen = ops.top_k(logits, self.config.top)
        return ops.softmax(best), chosen

    def _chosen(self, x: T, shares: T, chosen: T, ops: Ops[T]) -> T:
        """Rows x (N, D) through the chosen experts, whose weights are gathered."""
        c, width = self.config, self.width
        up = ops.reshape(ops.embedding(chosen, self.up), (0, c.top, width, self.columns))
        hidden = self._activated(ops.matmul(ops.reshape(x, (0, 1, 1, width)), up), ops)  # (N, top, 1, size)
        hidden = ops.mul(hidden, ops.reshape(shares, (0, c.top, 1, 1)))
        down = ops.reshape(ops.embedding(chosen, self.down), (0, c.top * c.size, width))
        return ops.reshape(ops.matmul(ops.reshape(hidden, (0, 1, c.top * c.size)), down), (0, width))

    def _all(self, x: T, shares: T, chosen: T, ops: Ops[T]) -> T:
        """Rows x (N, D) through all experts; those that a row has not chosen have the weight 0."""
        c, width = self.config, self.width
        up = ops.reshape(ops.parameter(self.up), (c.experts, width, self.columns))
        hidden = ops.transpose(self._activated(ops.matmul(x, up), ops), (1, 0, 2))  # (N, experts, size)
        eye = ops.constant(torch.eye(c.experts).tolist(), "float32", f"eye_{c.experts}")
        weights = ops.matmul(ops.reshape(shares, (0, 1, c.top)), ops.embedding(chosen, eye))
        hidden = ops.mul(hidden, ops.reshape(weights, (0, c.experts, 1)))
        down = ops.reshape(ops.parameter(self.down), (c.experts * c.size, width))
        return ops.matmul(ops.reshape(hidden, (0, c.experts * c.size)), down)

    def _activated(self, hidden: T, ops: Ops[T]) -> T:
        """gate and up (…, columns) -> (…, size)."""
        c = self.config
        if not c.gated:
            return activate(hidden, c.activation, ops)
        gate, up = ops.split(hidden, [c.size] * 2)
        return ops.mul(activate(gate, c.activation, ops), up)


def load_balance(logits: Tensor, chosen: Tensor) -> Tensor:
    """E Σ_e f_e P_e (Fedus et al. 2021, eq. 4 to 6), 1 if all experts have the same load.

    Args:
        logits: (N, E). chosen: (N, top).

    f is the share of choices and P the mean probability of an expert.
    """
    experts = logits.shape[-1]
    counts = torch.bincount(chosen.flatten(), minlength=experts).to(logits.dtype)
    return experts * (counts / counts.sum() * logits.softmax(-1).mean(0)).sum()
