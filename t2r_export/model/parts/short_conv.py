"""A gated short convolution: y = W_o (c ⊙ conv(b ⊙ u)), [b, c, u] = W x (LFM2, Liquid AI 2025, arXiv 2511.23404)."""

from __future__ import annotations

from torch import nn

from t2r_export.config.parts import ShortConvConfig
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.ops import State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import StateSpec


class ShortConv(Part):
    """A causal convolution with input and output gates."""

    config: ShortConvConfig

    def __init__(self, site: Site, config: ShortConvConfig) -> None:
        super().__init__(site, config)
        width, bias = site.width, config.bias
        self.projection = nn.Linear(width, 3 * width, bias=bias)
        self.conv = ShortConvolution(config.taps, width, bias)
        self.o = nn.Linear(width, width, bias=bias)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        b, c, u = ops.split(ops.linear(x, self.projection.weight, self.projection.bias), [self.width] * 3)
        y, after = self.conv(ops.mul(b, u), state["conv"], ops)
        return ops.linear(ops.mul(c, y), self.o.weight, self.o.bias), {"conv": after}

    def state_spec(self) -> list[StateSpec]:
        return [self.conv.state_spec()]
