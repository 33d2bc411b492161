"""The dense feed-forward."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from t2r_export.config.parts import DenseConfig
from t2r_export.model.activations import activate
from t2r_export.model.ops import State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_export.model.units import Rows, Units


class Dense(Part):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) if gated (Shazeer 2020)."""

    config: DenseConfig

    def __init__(self, site: Site, config: DenseConfig) -> None:
        super().__init__(site, config)
        width, size, bias = site.width, config.size, config.bias
        self.gate = nn.Linear(width, size, bias=bias) if config.gated else None
        self.up = nn.Linear(width, size, bias=bias)
        self.down = nn.Linear(size, width, bias=bias)

    def units(self, kind: str) -> Units | str | None:
        if kind != "ffn":
            return None
        size, config = self.config.size, self.config
        rows = {name: Rows((0,), torch.arange(size)) for name in self.state_dict() if name.split(".")[0] != "down"}
        rows["down.weight"] = Rows((1,), torch.arange(size))
        return Units(size, rows, lambda kept: replace(config, size=int(kept.sum())), reads="down.weight")

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, activation = step.ops, self.config.activation
        if self.gate is None:
            hidden = activate(ops.linear(x, self.up.weight, self.up.bias), activation, ops)
        else:
            gate, up = ops.linears(x, [[self.gate], [self.up]])
            hidden = ops.mul(activate(gate, activation, ops), up)
        return ops.linear(hidden, self.down.weight, self.down.bias), {}
