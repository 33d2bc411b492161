"""Modules that add a part's output to the residual stream: a sum, a weighted sum, or a gate."""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.gate import ResidualGateConfig
from t2r_export.config.parts import PartConfig
from t2r_export.model.ops import Ops, T


class ResidualSum(nn.Module):
    """x + y."""

    def forward(self, x: T, y: T, ops: Ops[T]) -> T:
        """Rows x and y (N, D) -> rows."""
        return ops.add(x, y)


class ReZero(nn.Module):
    """x + α y, initially α = 0 (Bachlechner et al. 2020, arXiv 2003.04887)."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x: T, y: T, ops: Ops[T]) -> T:
        """Rows x and y (N, D) -> rows."""
        return ops.add(x, ops.mul(y, ops.parameter(self.alpha)))


class ResidualGate(nn.Module):
    """g(x, y) = (1 - z) ⊙ x + z ⊙ ĥ, with r = σ(W_r y + U_r x), z = σ(W_z y + U_z x - b_g) and
    ĥ = tanh(W_g y + U_g (r ⊙ x)) (Parisotto et al. 2019, arXiv 1910.06764, section 3.2, GRU-type gating).

    The paper's y is relu(f(norm(x))). `bias` is b_g, which is trained.
    """

    def __init__(self, config: ResidualGateConfig, width: int) -> None:
        super().__init__()
        self.relu = config.relu
        self.w_r, self.w_z, self.w_g = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.u_r, self.u_z, self.u_g = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.bias = nn.Parameter(torch.full((width,), float(config.bias)))

    def forward(self, x: T, y: T, ops: Ops[T]) -> T:
        """Rows x and y (N, D) -> rows."""
        y = ops.relu(y) if self.relu else y
        w_r, w_z, w_g = ops.linears(y, [[self.w_r], [self.w_z], [self.w_g]])
        u_r, u_z = ops.linears(x, [[self.u_r], [self.u_z]])
        r = ops.sigmoid(ops.add(w_r, u_r))
        z = ops.sigmoid(ops.sub(ops.add(w_z, u_z), ops.parameter(self.bias)))
        h = ops.tanh(ops.add(w_g, ops.linear(ops.mul(r, x), self.u_g.weight, None)))
        return ops.add(x, ops.mul(z, ops.sub(h, x)))


def build_residual(part: PartConfig, width: int) -> nn.Module:
    """The residual module of a part."""
    if part.residual_gate is not None:
        return ResidualGate(part.residual_gate, width)
    return ReZero() if part.rezero else ResidualSum()
