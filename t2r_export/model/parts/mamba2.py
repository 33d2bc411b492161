"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): linear attention with a decay per head after a short convolution.

    z, u, dt = W x         x, B, C = silu(conv(u))         dt = clamp(softplus(dt + b))
    S_t = exp(-exp(A) dt) S_{t-1} + B (dt x)ᵀ              y = Sᵀ C + D x        o = W_o norm(y ⊙ silu(z))

B are the keys and C the queries, shared by the heads of a group. Prompts and steps clamp dt equally.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from t2r_export.config.parts import Mamba2Config
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.mixers.decays import inverse_softplus, skip, softplus_decay
from t2r_export.model.mixers.norms import gated_rms_norm
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_export.model.units import Rows, Units
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class Mamba2(Part):
    """Projection, convolution, state space, gated norm, output."""

    config: Mamba2Config

    def __init__(self, site: Site, config: Mamba2Config) -> None:
        super().__init__(site, config)
        self.sizes = [config.inner, sum(config.convolved), config.heads]  # z; x, B and C; dt
        self.project = nn.Linear(site.width, sum(self.sizes), bias=config.bias)
        self.conv = ShortConvolution(config.taps, self.sizes[1], config.conv_bias)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, config.heads + 1)))
        self.dt_bias = nn.Parameter(inverse_softplus(torch.logspace(-3, -1, config.heads)))
        self.D = nn.Parameter(torch.ones(config.heads))
        if config.norm_groups:
            self.norm_weight = nn.Parameter(torch.ones(config.inner))
        self.o = nn.Linear(config.inner, site.width, bias=config.output_bias)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, c = step.ops, self.config
        z, u, dt = ops.split(ops.linear(x, self.project.weight, self.project.bias), self.sizes)
        u, conv = self.conv(u, state["conv"], ops)
        inputs, B, C = ops.split(ops.silu(u), c.convolved)
        v, k, q = ops.split_heads(inputs, c.heads), ops.split_heads(B, c.groups), ops.split_heads(C, c.groups)
        limits = (c.least_step, math.inf if c.largest_step is None else c.largest_step)
        log_gate, dt = softplus_decay(dt, self.A_log, self.dt_bias, c.heads, ops, limits)
        y, _, S, _ = ops.linear_attention(q, k, ops.mul(v, dt), state["S"], None, log_gate)
        y = self._gated(ops.merge_heads(skip(y, v, self.D, ops)), z, ops)
        return ops.linear(y, self.o.weight, self.o.bias), {"S": S, "conv": conv}

    def _gated(self, y: T, z: T, ops: Ops[T]) -> T:
        c = self.config
        if not c.norm_groups:
            return ops.mul(y, ops.silu(z))
        gate_first = not c.norm_before_gate
        return gated_rms_norm(y, z, self.norm_weight, c.norm_eps, c.norm_groups, ops, gate_first=gate_first)

    def units(self, kind: str) -> Units | None:
        """Channels of the state, those of B and C, separate for each group."""
        if kind != "state":
            return None
        c = self.config
        keys = torch.arange(c.groups * c.state_size)
        convolved = torch.cat([torch.full((c.inner,), -1), keys, keys])
        joined = torch.cat([torch.full((c.inner,), -1), convolved, torch.full((c.heads,), -1)])
        rows = {"project.weight": Rows((0,), joined), "conv.weight": Rows((1,), convolved)}
        rows |= {"project.bias": Rows((0,), joined)} if c.bias else {}
        rows |= {"conv.bias": Rows((0,), convolved)} if c.conv_bias else {}

        def smaller(kept: Tensor) -> Mamba2Config:
            return replace(c, state_size=int(kept.sum()) // c.groups)

        return Units(len(keys), rows, smaller, c.groups)

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        return [StateSpec("S", "float32", (BATCH, c.heads, c.state_size, c.head_size)), self.conv.state_spec()]
