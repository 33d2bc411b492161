"""Mamba (Gu and Dao 2023, arXiv 2312.00752, algorithm 2): a selective scan after a short convolution.

    u, z = W x        u = silu(conv(u))        r, B, C = W_s u        dt = softplus(W_dt r + b)
    S_t = exp(-exp(A) ⊙ dt) ⊙ S_{t-1} + B (dt ⊙ u)ᵀ                  o = W_o ((Sᵀ C + D ⊙ u) ⊙ silu(z))

A (state_size, size) has a decay for each state of each channel, unlike that of Mamba-2. In FalconMamba and Jamba r, B
and C have RMS norms.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.parts import MambaConfig
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.mixers.decays import inverse_softplus
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class Mamba(Part):
    """Projection, convolution, selective scan, gate, output."""

    config: MambaConfig

    def __init__(self, site: Site, config: MambaConfig) -> None:
        super().__init__(site, config)
        c = config
        self.project = nn.Linear(site.width, 2 * c.size, bias=c.bias)
        self.conv = ShortConvolution(c.taps, c.size, c.conv_bias)
        self.selected = [c.step_rank, c.state_size, c.state_size]  # r, B and C
        self.select = nn.Linear(c.size, sum(self.selected), bias=False)
        if c.inner_norm_weights:
            self.inner_norms = nn.ParameterList(nn.Parameter(torch.ones(size)) for size in self.selected)
        self.dt = nn.Linear(c.step_rank, c.size, bias=False)
        self.dt_bias = nn.Parameter(inverse_softplus(torch.logspace(-3, -1, c.size)))
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, c.state_size + 1)).repeat(c.size, 1).T.contiguous())
        self.D = nn.Parameter(torch.ones(c.size))
        self.o = nn.Linear(c.size, site.width, bias=c.bias)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, c = step.ops, self.config
        u, z = ops.split(ops.linear(x, self.project.weight, self.project.bias), [c.size] * 2)
        u, conv = self.conv(u, state["conv"], ops)
        u = ops.silu(u)
        selected = ops.split(ops.linear(u, self.select.weight, None), self.selected)
        if c.inner_norm_eps is not None:
            weights = self.inner_norms if c.inner_norm_weights else [None] * 3
            pairs = zip(selected, weights, strict=True)
            selected = [ops.rms_norm(part, weight, c.inner_norm_eps) for part, weight in pairs]
        r, B, C = selected
        y, S = self._scan(u, ops.softplus(ops.linear(r, self.dt.weight, self.dt_bias)), B, C, state["S"], ops)
        y = ops.mul(ops.add(y, ops.mul(u, ops.parameter(self.D))), ops.silu(z))
        return ops.linear(y, self.o.weight, self.o.bias), {"S": S, "conv": conv}

    def _scan(self, u: T, dt: T, B: T, C: T, S: T, ops: Ops[T]) -> tuple[T, T]:
        """u and dt (N, size), B and C (N, K), the state before (B, K, size) -> Sᵀ C (N, size) and the state after.

        Chunked linear attention would need a head per channel, with scores for each: the scan needs fewer products.
        """
        size, K = self.config.size, self.config.state_size
        rates = ops.mul(ops.exp(ops.parameter(self.A_log)), -1.0)
        log_gate = ops.mul(ops.reshape(dt, (0, 1, size)), rates)  # (N, K, size)
        written = ops.matmul(ops.reshape(B, (0, K, 1)), ops.reshape(ops.mul(dt, u), (0, 1, size)))
        flat = [ops.reshape(part, (0, K * size)) for part in (written, log_gate, S)]
        states, after = ops.linear_recurrence(*flat)
        read = ops.matmul(ops.reshape(C, (0, 1, K)), ops.reshape(states, (0, K, size)))
        return ops.reshape(read, (0, size)), ops.reshape(after, (0, K, size))

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        return [StateSpec("S", "float32", (BATCH, c.state_size, c.size)), self.conv.state_spec()]
