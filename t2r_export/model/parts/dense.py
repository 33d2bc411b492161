"""The dense feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from t2r_export.config.parts import DenseConfig
from t2r_export.model.activations import activate
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_export.model.units import Rows, Units


class Factored(nn.Module):
    """W x + b with W = outer inner, of rank `rank`: two products."""

    def __init__(self, inputs: int, outputs: int, rank: int, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, rank, bias=False)
        self.outer = nn.Linear(rank, outputs, bias=bias)


class Dense(Part):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) if gated (Shazeer 2020), with `token_gate` times sigmoid(w x)."""

    config: DenseConfig

    def __init__(self, site: Site, config: DenseConfig) -> None:
        super().__init__(site, config)
        width, size = site.width, config.size
        self.gate = self._matrix(width, size) if config.gated else None
        self.up = self._matrix(width, size)
        self.down = self._matrix(size, width)
        self.token_gate = nn.Linear(width, 1, bias=False) if config.token_gate else None

    def _matrix(self, inputs: int, outputs: int) -> nn.Linear | Factored:
        rank, bias = self.config.rank, self.config.bias
        return Factored(inputs, outputs, rank, bias) if rank else nn.Linear(inputs, outputs, bias=bias)

    def factorable(self) -> list[str]:
        return [] if self.config.rank else [name for name, _ in self.named_children() if name != "token_gate"]

    def with_rank(self, rank: int) -> DenseConfig:
        return replace(self.config, rank=rank)

    def units(self, kind: str) -> Units | str | None:
        if kind != "ffn":
            return None
        size, config, reads = self.config.size, self.config, "down.inner.weight" if self.config.rank else "down.weight"
        into = [name for name in self.state_dict() if name.startswith(("gate.", "up.")) and ".inner." not in name]
        rows = {name: Rows((0,), torch.arange(size)) for name in into} | {reads: Rows((1,), torch.arange(size))}
        return Units(size, rows, lambda kept: replace(config, size=int(kept.sum())), reads=reads)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, activation = step.ops, self.config.activation
        if self.gate is None:
            hidden = activate(_product(x, [self.up], ops)[0], activation, ops)
        else:
            gate, up = _product(x, [self.gate, self.up], ops)
            hidden = ops.mul(activate(gate, activation, ops), up)
        y = _product(hidden, [self.down], ops)[0]
        if self.token_gate is not None:
            y = ops.mul(y, ops.sigmoid(ops.linear(x, self.token_gate.weight, None)))
        return y, {}


def _product(x: T, matrices: Sequence[nn.Linear | Factored], ops: Ops[T]) -> list[T]:
    """Rows x (N, I) times matrices -> rows (N, O) for each."""
    whole = [matrix.inner if isinstance(matrix, Factored) else matrix for matrix in matrices]
    made = ops.linears(x, [[matrix] for matrix in whole])
    outer = [matrix.outer if isinstance(matrix, Factored) else None for matrix in matrices]
    return [y if own is None else ops.linear(y, own.weight, own.bias) for y, own in zip(made, outer, strict=True)]
