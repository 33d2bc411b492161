"""A block: the parts of a layer, their norms, and the sums between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
from torch import Tensor, nn

from t2r_export.config.layer import LayerConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import PartConfig
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
    def readers(self) -> list[tuple[Part, dict[str, str]]]:
        """The parts that read a source, and `names` of each."""
        return [pair for pair in zip(self.parts, self.names, strict=True) if pair[0].config.reads_source]

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Rows x (N, D) and the block's states before -> rows and the states after."""
        trace = self.trace(x, state, step)
        return trace.output, trace.after

    def trace(self, x: T, state: State[T], step: Step[T]) -> BlockTrace[T]:
        """`forward`, with what is on its way."""
        after: State[T] = {}
        input, seen, traces = x, x, []
        for n, (part, names) in enumerate(zip(self.parts, self.names, strict=True)):
            seen = seen if part.config.beside else x
            if part.config.norm is not None or not part.config.beside:
                normed = self.norms[n](seen, step.ops)
            y, new = part(normed, {own: state[name] for own, name in names.items()}, step)
            after |= {names[own]: value for own, value in new.items()}
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

    @property
    def names(self) -> list[dict[str, str]]:
        """Of each part, what its states are called in the block: S_1 those of part 1 if one before it has an S too."""
        found: list[dict[str, str]] = []
        for n, part in enumerate(self.parts):
            shared = any(not names.keys().isdisjoint(part.state_names) for names in found)
            found.append({own: f"{own}_{n}" if shared else own for own in part.state_names})
        return found

    def own(self, n: int, state: State[Any]) -> State[Any]:
        """Of the block's states those of part n, by its own names."""
        return {own: state[name] for own, name in self.names[n].items()}

    def fold_state(self, state: State[Tensor]) -> State[Tensor]:
        """The block's states as its folded parts keep them, which may be others."""
        after: State[Tensor] = {}
        for n, part in enumerate(self.parts):
            numbered = any(name != own for own, name in self.names[n].items())
            folded = part.fold_state(self.own(n, state))
            after |= {f"{own}_{n}" if numbered else own: value for own, value in folded.items()}
        return after

    def state_spec(self) -> list[StateSpec]:
        """Of all its parts."""
        pairs = zip(self.parts, self.names, strict=True)
        return [replace(spec, name=names[spec.name]) for part, names in pairs for spec in part.state_spec()]


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
