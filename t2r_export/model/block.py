"""A block: the parts of a layer, their norms, and the sums between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import nn

from t2r_export.config.layer import LayerConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import PartConfig
from t2r_export.model.mixers.base import own_states
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site, build_part
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import StateSpec


class Norm(nn.Module):
    """Layer norm (weight and bias), RMS norm (weight), or none: x as it is."""

    def __init__(self, config: NormConfig | None, width: int) -> None:
        super().__init__()
        self.eps = 0.0 if config is None else config.eps
        self.weight = None if config is None else nn.Parameter(torch.ones(width))
        layer = config is not None and config.kind == "layer"
        self.bias = nn.Parameter(torch.zeros(width)) if layer else None

    def forward(self, x: T, ops: Ops[T]) -> T:
        if self.weight is None:
            return x
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Block(nn.Module):
    """A layer: for each part x + norm_after(part(norm(x))) · multiplier, then norm_sum (`PartConfig`)."""

    parts: Sequence[Part]  # an nn.ModuleList, as are the norms
    norms: Sequence[Norm]
    norms_after: Sequence[Norm]
    norms_sum: Sequence[Norm]

    def __init__(self, config: LayerConfig, site: Site) -> None:
        super().__init__()
        self.config = config
        self.parts = nn.ModuleList(build_part(site, part) for part in config.parts)  # type: ignore[assignment]
        for name, kind in (("norms", "norm"), ("norms_after", "norm_after"), ("norms_sum", "norm_sum")):
            setattr(self, name, nn.ModuleList(Norm(getattr(part, kind), site.width) for part in config.parts))

    @property
    def mixers(self) -> list[Part]:
        """The parts through which tokens see each other."""
        return [self.parts[place] for place in self.mixing]

    @property
    def mixing(self) -> list[int]:
        """Their numbers."""
        return [n for n, part in enumerate(self.config.parts) if part.mixes]

    @property
    def readers(self) -> list[Part]:
        """The parts that read a source."""
        return [part for part in self.parts if part.config.reads_source]

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Rows x (N, D) and the block's states before -> rows and the states after."""
        trace = self.trace(x, state, step)
        return trace.output, trace.after

    def trace(self, x: T, state: State[T], step: Step[T]) -> BlockTrace[T]:
        """`forward`, with what is on its way."""
        after: State[T] = {}
        input, traces = x, []
        for n, part in enumerate(self.parts):
            normed = self.norms[n](input if self.config.parallel else x, step.ops)
            y, new = part(normed, own_states(part, state), step)
            after |= new
            traces.append(PartTrace(normed, y, part.config.mixes))
            x = self._added(x, y, n, step.ops)
        return BlockTrace(input, tuple(traces), x, after)

    def _added(self, x: T, y: T, n: int, ops: Ops[T]) -> T:
        """The residual stream x with what part n gave, y."""
        part: PartConfig = self.config.parts[n]
        y = self.norms_after[n](y, ops)
        if part.multiplier != 1.0:
            y = ops.mul(y, part.multiplier)
        x = self.norms_sum[n](ops.add(x, y) if part.residual else y, ops)
        return x

    def state_spec(self) -> list[StateSpec]:
        """Of all its parts, whose states have different names."""
        return [spec for part in self.parts for spec in part.state_spec()]


@dataclass(frozen=True)
class PartTrace(Generic[T]):
    """What a part got and gave: rows (N, D)."""

    normed: T
    mixed: T
    mixes: bool  # whether tokens see each other in it


@dataclass(frozen=True)
class BlockTrace(Generic[T]):
    """What a block got, what each of its parts got and gave, and what came out: rows (N, D)."""

    input: T
    parts: tuple[PartTrace[T], ...]
    output: T
    after: State[T]
