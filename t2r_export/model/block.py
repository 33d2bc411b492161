"""A block: its token mixers and a feed-forward, their norms, and the sums between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import nn

from t2r_export.config.model import ModelConfig
from t2r_export.model.feed_forward import build_feed_forward
from t2r_export.model.mixers.base import Mixer, own_states
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.step import Step
from t2r_runtime.signature import StateSpec


class Norm(nn.Module):
    """Layer norm (weight and bias), RMS norm (weight), or none: x as it is."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.width)) if config.norm != "none" else None
        self.bias = nn.Parameter(torch.zeros(config.width)) if config.norm == "layer" else None

    def forward(self, x: T, ops: Ops[T]) -> T:
        if self.weight is None:
            return x
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Block(nn.Module):
    """x + mixer(norm(x)) for each of its mixers, then x + ffn(norm(x)); a sum is its second term where the config has
    no residual. Norms may also stand behind a sum (`norm_position` post), or on both sides of a part (both), and all
    parts may see the same x (`parallel`)."""

    mixers: Sequence[Mixer]  # an nn.ModuleList, as is
    norms: Sequence[Norm]

    def __init__(self, config: ModelConfig, layer: int, mixers: Sequence[Mixer]) -> None:
        super().__init__()
        self.residual, self.norm_position, self.parallel = config.residual, config.norm_position, config.parallel
        self.norms = nn.ModuleList(Norm(config) for _ in mixers)  # type: ignore[assignment]
        self.mixers = nn.ModuleList(mixers)  # type: ignore[assignment]
        ffn = build_feed_forward(config, config.feed_forward(layer))
        self.ffn_norm = None if ffn is None else Norm(config)
        self.ffn = ffn
        if config.norm_position == "both":
            self.norms_after: Sequence[Norm] = nn.ModuleList(Norm(config) for _ in mixers)  # type: ignore[assignment]
            self.ffn_norm_after = None if self.ffn is None else Norm(config)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Rows x (N, D) and the block's states before -> rows and the states after."""
        trace = self.trace(x, state, step)
        return trace.output, trace.after

    def trace(self, x: T, state: State[T], step: Step[T]) -> BlockTrace[T]:
        """`forward`, with what is on its way."""
        after: State[T] = {}
        input, parts = x, []
        ops, post = step.ops, self.norm_position == "post"
        for n, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=True)):
            normed = x if post else norm(input if self.parallel else x, ops)
            mixed, new = mixer(normed, own_states(mixer, state), step)
            after |= new
            parts.append(PartTrace(normed, mixed))
            x = self._added(x, mixed, norm, self.norms_after[n] if self.norm_position == "both" else None, ops)
        if self.ffn is not None and self.ffn_norm is not None:
            y = self.ffn(x if post else self.ffn_norm(input if self.parallel else x, ops), ops)
            x = self._added(x, y, self.ffn_norm, self.ffn_norm_after if self.norm_position == "both" else None, ops)
        return BlockTrace(input, tuple(parts), x, after)

    def _added(self, x: T, y: T, norm: Norm, norm_after: Norm | None, ops: Ops[T]) -> T:
        """The residual stream x with what a part gave, y."""
        y = y if norm_after is None else norm_after(y, ops)
        x = ops.add(x, y) if self.residual else y
        return norm(x, ops) if self.norm_position == "post" else x

    def state_spec(self) -> list[StateSpec]:
        """Of all its mixers, whose states have different names."""
        return [spec for mixer in self.mixers for spec in mixer.state_spec()]


@dataclass(frozen=True)
class PartTrace(Generic[T]):
    """What a mixer got and gave: rows (N, D)."""

    normed: T
    mixed: T


@dataclass(frozen=True)
class BlockTrace(Generic[T]):
    """What a block got, what each of its mixers got and gave, and what came out: rows (N, D)."""

    input: T
    parts: tuple[PartTrace[T], ...]
    output: T
    after: State[T]
