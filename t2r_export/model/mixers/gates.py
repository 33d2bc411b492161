"""What a layer asks of a token: how much of the state stays, how much of the token goes in, how much of o comes out.

    g_t = 1 - 2^(-5-i) for head i, fixed  (RetNet, Sun et al. 2023, arXiv 2307.08621, section 2.3), or
    g_t = sigmoid(w_g·x_t + b_g)          (RFA-gate, Peng et al. 2021, arXiv 2103.02143, section 3.3)
    β_t = sigmoid(w_β·x_t + b_β)          (Schlag et al. 2021, arXiv 2102.11174, eq. 26)

x is the block's normalised input, which q, k and v are made of as well. One number a kv head. A gate is computed as
log g: near 1, where a layer that remembers has it, float32 cannot tell many values of g itself apart.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.model.ops import Ops, T

OPEN = 6.0  # b_g to start from: g = 0.9975, so that a swapped layer starts near the one without a gate


class Control(NamedTuple, Generic[T]):
    """What a token does to the state, where the update rule asks for it."""

    log_gate: T | None = None  # log g, the share of the state that stays
    beta: T | None = None  # the delta rule's rate
    entering: T | None = None  # 1 - g of a moving average, which multiplies φ(k)


class Gates(nn.Module):
    """log g and β of every kv head. In a folded layer the rows that compute them stand with those of q, k and v."""

    log_gate: Tensor  # fixed gates, (1, heads, 1, 1), and
    entering: Tensor  # 1 - g

    def __init__(self, width: int, heads: int, config: LinearConfig) -> None:
        super().__init__()
        self.heads, self.config = heads, config
        self.data, self.delta = config.gate == "data", config.delta
        if config.gate == "fixed":
            # computed, not loaded: real numbers even where a model is laid out on the meta device
            left = 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64, device="cpu"))
            self.register_buffer("log_gate", torch.log1p(-left).float().view(1, heads, 1, 1), persistent=False)
            self.register_buffer("entering", left.float().view(1, heads, 1, 1), persistent=False)
        if self.rows and not config.folded:
            self.weight = nn.Parameter(torch.zeros(self.rows, width))  # of g, then of β
            # not called a bias: a model from random weights starts with those at zero
            start = [OPEN] * (heads * self.data) + [0.0] * (heads * self.delta)
            self.offset = nn.Parameter(torch.tensor(start))

    @property
    def rows(self) -> int:
        """Numbers per token that are computed from x."""
        return self.heads * (self.data + self.delta)

    def logits(self, x: T, ops: Ops[T]) -> T | None:
        """Rows x (N, D) -> (N, rows), before the sigmoid; None where nothing is computed from x."""
        if not self.rows:
            return None
        return _rows(x, self.weight, self.offset, ops)

    def control(self, logits: T | None, ops: Ops[T]) -> Control[T]:
        """Logits of the tokens (N, rows) -> each (B, heads, T, 1), or (1, heads, 1, 1) where it is fixed."""
        log_gate: T | None = None
        beta: T | None = None
        entering: T | None = None
        if logits is not None:
            parts = [logits] if self.data != self.delta else ops.split(logits, [self.heads] * 2)
            if self.data:
                u = ops.split_heads(parts[0], self.heads)
                log_gate = ops.log_sigmoid(u)
                if self.config.moving_average:
                    entering = ops.exp(ops.log_sigmoid(ops.mul(u, -1.0)))  # 1 - g would lose what a small share is
            if self.delta:
                beta = ops.sigmoid(ops.split_heads(parts[-1], self.heads))
        if self.config.gate == "fixed":
            log_gate = ops.parameter(self.log_gate)
            entering = ops.parameter(self.entering) if self.config.moving_average else None
        return Control(log_gate, beta, entering)


class OutputGate(nn.Module):
    """o ⊙ 2 sigmoid(W x + b), a number for each number of the heads' outputs (GLA, Yang et al. 2024, arXiv 2312.06635,
    eq. 9, with sigmoid in place of swish).

    W and b start at 0, where it is 1: a swapped layer is at first the one without it. In a folded layer its rows stand
    with those of q, k and v.
    """

    def __init__(self, width: int, heads: int, size: int, folded: bool) -> None:
        super().__init__()
        self.heads, self.rows = heads, heads * size
        if not folded:
            self.weight = nn.Parameter(torch.zeros(self.rows, width))
            self.offset = nn.Parameter(torch.zeros(self.rows))

    def logits(self, x: T, ops: Ops[T]) -> T:
        """Rows x (N, D) -> (N, heads · size)."""
        return _rows(x, self.weight, self.offset, ops)

    def forward(self, o: T, logits: T, ops: Ops[T]) -> T:
        """o (B, heads, T, size) and the logits of its tokens (N, heads · size) -> (B, heads, T, size)."""
        return ops.mul(o, ops.mul(ops.sigmoid(ops.split_heads(logits, self.heads)), 2.0))


def _rows(x: T, weight: Tensor, offset: Tensor, ops: Ops[T]) -> T:
    """Rows x (N, D) times weight (n, D), moved by offset (n): (N, n)."""
    return ops.add(ops.linear(x, weight, None), ops.parameter(offset))
