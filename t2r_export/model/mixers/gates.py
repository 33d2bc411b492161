"""Gates of the state, rates of the delta rule, and output gates.

    g_t = 1 - 2^(-5-i) for head i, fixed  (RetNet, Sun et al. 2023, arXiv 2307.08621, section 2.3), or
    g_t = sigmoid(w_g·x_t + b_g)          (RFA-gate, Peng et al. 2021, arXiv 2103.02143, section 3.3)
    g_t = sigmoid(W_g x_t + b_g)          for each pair of features (i, i + K/2) that rotates (GLA, Yang et al. 2024,
                                          arXiv 2312.06635, section 4.2: for each feature)
    β_t = sigmoid(w_β·x_t + b_β)          (Schlag et al. 2021, arXiv 2102.11174, eq. 26)

x is the layer's normalized input; g and β are per kv head. A decay per pair commutes with the rotation, unlike one per
feature, so that reads of earlier tokens depend only on distance. Gates are computed as log g, because float32 has few
values of g near 1.
"""

from __future__ import annotations

from typing import Generic, NamedTuple

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.model.mixers.decays import fixed_shares
from t2r_export.model.ops import Ops, T

OPEN = 6.0  # initial b_g: g = 0.9975, close to a layer without a gate


class Control(NamedTuple, Generic[T]):
    """Gates and rates of the update rule."""

    log_gate: T | None = None  # log g
    beta: T | None = None  # rate of the delta rule
    entering: T | None = None  # 1 - g, the factor of φ(k) in a moving average


class Gates(nn.Module):
    """log g and β per kv head. In a folded layer, the packed projection computes their logits."""

    log_gate: Tensor  # of fixed gates, (1, heads, 1, 1)
    entering: Tensor  # 1 - g

    def __init__(self, width: int, heads: int, config: LinearConfig) -> None:
        super().__init__()
        self.heads, self.config = heads, config
        self.sizes = [heads * config.gates] * (config.gates > 0) + [heads] * config.delta  # logits of g, then of β
        if config.gate == "fixed":
            left = fixed_shares(heads)
            # not persistent, so that models on the meta device have values
            self.register_buffer("log_gate", torch.log1p(-left).float(), persistent=False)
            self.register_buffer("entering", left.float(), persistent=False)
        if self.rows and not config.folded:
            self.weight = nn.Parameter(torch.zeros(self.rows, width))
            # not named bias, because `initialize` zeroes biases
            start = [OPEN] * (heads * config.gates) + [0.0] * (heads * config.delta)
            self.offset = nn.Parameter(torch.tensor(start))

    @property
    def rows(self) -> int:
        """Number of logits per token."""
        return sum(self.sizes)

    def why_heads_count(self) -> str | None:
        """As `AttentionMixer.why_heads_count`."""
        return "fixed gates, which differ by the number of a head" if self.config.gate == "fixed" else None

    @property
    def is_new(self) -> bool:
        """Whether there are decays that are computed from the token and untrained."""
        if not self.config.gates or self.config.folded:
            return False
        return not bool(self.weight.any()) and bool((self.offset[: self.heads * self.config.gates] == OPEN).all())

    @torch.no_grad()
    def start_at(self, distance: Tensor | None) -> None:
        """Initialize untrained decays as exp(-1/τ), τ (heads,) the mean attention distances; None: they stay.

        A τ below 1 counts as 1.
        """
        if distance is None or len(distance) != self.heads or not self.is_new:
            return
        offset = self.offset[: self.heads * self.config.gates]
        log_gate = -1.0 / distance.double().clamp(min=1.0)
        logit = log_gate - torch.log(-torch.expm1(log_gate))
        offset.copy_(logit.repeat_interleave(self.config.gates))

    def logits(self, x: T, ops: Ops[T]) -> T | None:
        """Rows x (N, D) -> logits (N, rows); None without data-dependent gates."""
        if not self.rows:
            return None
        return _rows(x, self.weight, self.offset, ops)

    def control(self, logits: T | None, ops: Ops[T]) -> Control[T]:
        """Logits (N, rows) -> gates (B, heads, T, 1), (B, heads, T, K) for pairs, or (1, heads, 1, 1) if fixed."""
        log_gate: T | None = None
        beta: T | None = None
        entering: T | None = None
        if logits is not None:
            parts = ops.split(logits, self.sizes)
            if self.config.gates:
                u = ops.split_heads(parts[0], self.heads)
                u = ops.concat([u, u]) if self.config.gate == "pair" else u
                log_gate = ops.log_sigmoid(u)
                if self.config.moving_average:
                    entering = ops.exp(ops.log_sigmoid(ops.mul(u, -1.0)))  # 1 - g is inexact for g near 1
            if self.config.delta:
                beta = ops.sigmoid(ops.split_heads(parts[-1], self.heads))
        if self.config.gate == "fixed":
            log_gate = ops.parameter(self.log_gate)
            entering = ops.parameter(self.entering) if self.config.moving_average else None
        return Control(log_gate, beta, entering)


class OutputGate(nn.Module):
    """Elementwise output gate o ⊙ 2 sigmoid(W x + b) (GLA, Yang et al. 2024, arXiv 2312.06635, eq. 9, with sigmoid
    instead of swish).

    W and b are initially 0, so that the gate is 1. In a folded layer, the packed projection computes its logits.
    """

    def __init__(self, width: int, heads: int, size: int, folded: bool) -> None:
        super().__init__()
        self.heads, self.rows = heads, heads * size
        if not folded:
            self.weight = nn.Parameter(torch.zeros(self.rows, width))
            self.offset = nn.Parameter(torch.zeros(self.rows))

    def logits(self, x: T, ops: Ops[T]) -> T:
        """Rows x (N, D) -> logits (N, heads · size)."""
        return _rows(x, self.weight, self.offset, ops)

    def forward(self, o: T, logits: T, ops: Ops[T]) -> T:
        """o (B, heads, T, size) and logits (N, heads · size) -> gated o."""
        return ops.mul(o, ops.mul(ops.sigmoid(ops.split_heads(logits, self.heads)), 2.0))


def _rows(x: T, weight: Tensor, offset: Tensor, ops: Ops[T]) -> T:
    """x (N, D) @ weight (n, D)ᵀ + offset (n) -> (N, n)."""
    return ops.add(ops.linear(x, weight, None), ops.parameter(offset))
