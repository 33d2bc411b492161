"""A block: the parts of a layer with norms and residual sums, or gates; once, or in two Runge-Kutta stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from t2r_export.config.layer import LayerConfig
from t2r_export.config.parts import PartConfig
from t2r_export.model.mixers.norms import Norm
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site, build_part
from t2r_export.model.residual import build_residual
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import StateSpec


class BlockNorm(Norm):
    """A norm of the model's width, before or after a part."""


class Block(nn.Module):
    """A layer; see `PartConfig` for the order of norms and sums."""

    parts: Sequence[Part]  # nn.ModuleList, as are the norms
    norms: Sequence[Norm]
    norms_after: Sequence[Norm]
    norms_sum: Sequence[Norm]
    residuals: Sequence[nn.Module]
    recomputes = False  # recompute intermediate values in the backward pass

    def __init__(self, config: LayerConfig, site: Site) -> None:
        super().__init__()
        self.config = config
        self.parts = nn.ModuleList(build_part(site, part) for part in config.parts)  # type: ignore[assignment]
        for name, kind in (("norms", "norm"), ("norms_after", "norm_after"), ("norms_sum", "norm_sum")):
            setattr(self, name, nn.ModuleList(BlockNorm(getattr(part, kind), site.width) for part in config.parts))
        gates = [build_residual(part, site.width) for part in config.parts]
        self.residuals = nn.ModuleList(gates)  # type: ignore[assignment]

    @property
    def mixers(self) -> list[Part]:
        """The parts in which tokens interact."""
        return [self.parts[place] for place in self.mixing]

    @property
    def mixing(self) -> list[int]:
        """Indices of `mixers`."""
        return [n for n, part in enumerate(self.config.parts) if part.mixes]

    @property
    def readers(self) -> list[tuple[Part, dict[str, str]]]:
        """The parts that read a source, each with its `names`."""
        return [pair for pair in zip(self.parts, self.names, strict=True) if pair[0].config.reads_source]

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Rows x (N, D) and the states before -> rows and the states after."""
        trace = self.trace(x, state, step)
        return trace.output, trace.after

    def trace(self, x: T, state: State[T], step: Step[T]) -> BlockTrace[T]:
        """`forward` with intermediate values, of the first stage in an rk2 block."""
        if not self.recomputes or not torch.is_grad_enabled():
            return self._trace(x, state, step)
        before = step.copy()  # layers above replace values that this one borrows

        def run(x: T) -> tuple[BlockTrace[T], Step[T]]:
            inner = before.copy()
            return self._trace(x, state, inner), inner

        trace: BlockTrace[T]
        trace, after = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
        step.take(after)
        return trace

    def _trace(self, x: T, state: State[T], step: Step[T]) -> BlockTrace[T]:
        first = self._stage(x, state, step, self.names)
        if not self.config.rk2:
            return first
        second = self._stage(first.output, state, step, self.stages[1])
        output = step.ops.mul(step.ops.add(x, second.output), 0.5)
        return replace(first, output=output, after=first.after | second.after)

    def _stage(self, x: T, state: State[T], step: Step[T], stage: list[dict[str, str]]) -> BlockTrace[T]:
        """Run the parts in order on the states named by `stage`."""
        after: State[T] = {}
        input, seen, traces, added = x, x, [], None
        for n, (part, names) in enumerate(zip(self.parts, stage, strict=True)):
            seen = seen if part.config.beside else x if added is None else step.ops.add(x, added)
            if part.config.norm is not None or not part.config.beside:
                normed = self.norms[n](seen, step.ops)
            y, new = part(normed, {own: state[name] for own, name in names.items()}, step)
            after |= {names[own]: value for own, value in new.items()}
            traces.append(PartTrace(normed, y, part.config.mixes))
            added = self._scaled(y, n, step.ops) if part.config.aside else None
            x = x if part.config.aside else self._added(x, y, n, step.ops)
        return BlockTrace(input, tuple(traces), x, after)

    def _added(self, x: T, y: T, n: int, ops: Ops[T]) -> T:
        """Add the output y of part n to the residual stream x."""
        part: PartConfig = self.config.parts[n]
        y = self._scaled(y, n, ops)
        summed: T = self.norms_sum[n](self.residuals[n](x, y, ops) if part.residual else y, ops)
        return summed

    def _scaled(self, y: T, n: int, ops: Ops[T]) -> T:
        """The output y of part n after its norm and multiplier."""
        y, multiplier = self.norms_after[n](y, ops), self.config.parts[n].multiplier
        return y if multiplier == 1.0 else ops.mul(y, multiplier)

    @property
    def names(self) -> list[dict[str, str]]:
        """Block-level state names of each part; a suffix such as S_1 avoids collisions."""
        found: list[dict[str, str]] = []
        for n, part in enumerate(self.parts):
            shared = any(not names.keys().isdisjoint(part.state_names) for names in found)
            found.append({own: f"{own}_{n}" if shared else own for own in part.state_names})
        return found

    @property
    def stages(self) -> list[list[dict[str, str]]]:
        """`names` of each stage."""
        return [
            [{own: f"{name}{suffix}" for own, name in of.items()} for of in self.names] for suffix in self._suffixes
        ]

    @property
    def _suffixes(self) -> list[str]:
        return ["", "_rk2"] if self.config.rk2 else [""]

    def own(self, n: int, state: State[Any], stage: int = 0) -> State[Any]:
        """The states of part n by the part's own names."""
        return {own: state[name] for own, name in self.stages[stage][n].items()}

    def fold_state(self, state: State[Tensor]) -> State[Tensor]:
        """Convert states to those of the folded parts."""
        after: State[Tensor] = {}
        for stage, suffix in enumerate(self._suffixes):
            for n, part in enumerate(self.parts):
                numbered = any(name != own for own, name in self.names[n].items())
                folded = part.fold_state(self.own(n, state, stage))
                after |= {f"{own}_{n}{suffix}" if numbered else own + suffix: value for own, value in folded.items()}
        return after

    def state_spec(self) -> list[StateSpec]:
        """The states of all parts, by block-level name."""
        pairs = [pair for stage in self.stages for pair in zip(self.parts, stage, strict=True)]
        return [replace(spec, name=names[spec.name]) for part, names in pairs for spec in part.state_spec()]


@dataclass(frozen=True)
class PartTrace(Generic[T]):
    """Input and output of a part: rows (N, D)."""

    normed: T
    mixed: T
    mixes: bool  # whether tokens interact in the part


@dataclass(frozen=True)
class BlockTrace(Generic[T]):
    """Input, parts and output of a block, rows (N, D), and the states after."""

    input: T
    parts: tuple[PartTrace[T], ...]
    output: T
    after: State[T]
