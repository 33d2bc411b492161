"""Lightweight and dynamic convolutions (Wu et al. 2019, arXiv 1901.10430, sections 3 and 4).

    u = a ⊙ σ(b), [a, b] = W x      y_t,h = Σ_j softmax(w_h)_j u_{t-n+1+j},h      o = W_o y

w (H, n) has a kernel per head, shared by its channels: trained, or computed per token as w = W_k u_t (dynamic).
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from t2r_export.lab.config.light_conv import LightConvConfig
from t2r_export.model.mixers.convolution import inputs_of_taps
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class LightConv(Part):
    """A gated input projection, a convolution by heads, and an output projection."""

    config: LightConvConfig

    def __init__(self, site: Site, config: LightConvConfig) -> None:
        super().__init__(site, config)
        size, heads, taps = config.size, config.heads, config.taps
        self.project = nn.Linear(site.width, 2 * size)
        if config.dynamic:
            self.kernels = nn.Linear(size, heads * taps, bias=False)
        else:
            self.kernel = nn.Parameter((6 / (heads + taps)) ** 0.5 * (2 * torch.rand(heads, taps) - 1))
        self.o = nn.Linear(size, site.width)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, taps = step.ops, self.config.taps
        a, b = ops.split(ops.linear(x, self.project.weight, self.project.bias), [self.config.size] * 2)
        u = ops.mul(a, ops.sigmoid(b))
        joined = ops.concat([state["conv"], ops.split_heads(u, self.config.heads)], axis=2)
        shares = ops.split(self._shares(u, ops), [1] * taps)
        terms = [ops.mul(past, share) for past, share in zip(inputs_of_taps(joined, taps, ops), shares, strict=True)]
        y = ops.merge_heads(functools.reduce(ops.add, terms))
        return ops.linear(y, self.o.weight, self.o.bias), {"conv": ops.kept_buffer(joined, taps - 1)}

    def _shares(self, u: T, ops: Ops[T]) -> T:
        """Kernels, oldest input first: (H, 1, n), or (B, H, T, n) if dynamic."""
        heads, taps = self.config.heads, self.config.taps
        if not self.config.dynamic:
            return ops.reshape(ops.softmax(ops.parameter(self.kernel)), (heads, 1, taps))
        return ops.softmax(ops.split_heads(ops.linear(u, self.kernels.weight, None), heads))

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        return [StateSpec("conv", "float32", (BATCH, c.heads, c.taps - 1, c.size // c.heads))]
