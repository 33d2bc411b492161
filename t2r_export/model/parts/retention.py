"""Gated sums of k vᵀ: gated linear attention (Yang et al. 2024, arXiv 2312.06635) and multi-scale retention (Sun et al.
2023, arXiv 2307.08621).

    q, k, v = W x, or silu(conv(W x))       S_t = D_t S_{t-1} + k vᵀ       y = W_o (norm(Sᵀ q / √K) ⊙ act(W_z x))

    GLA          D = σ(A_2 A_1 x + b)^(1/16), per key channel
    retention    D = 1 - 2^(-5-i) for head i;  q and k are rotated by their positions
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.parts import GLAConfig, RetentionConfig
from t2r_export.model.mixers.decays import fixed_shares, log_sigmoid_decay
from t2r_export.model.mixers.gates import Control
from t2r_export.model.ops import Ops, T
from t2r_export.model.parts.base import Site
from t2r_export.model.parts.linear import LinearPart
from t2r_export.model.positions.turns import apply_rope
from t2r_export.model.step import Step
from t2r_export.model.units import Units


class GatedSum(LinearPart):
    """Without a convolution q, k and v are not activated; q is scaled by 1 / √K."""

    def activated(self, packed: T, ops: Ops[T]) -> T:
        return super().activated(packed, ops) if self.config.taps else packed

    def features(self, q: T, k: T, step: Step[T]) -> tuple[T, T]:
        return step.ops.mul(q, self.config.key_size**-0.5), k


class GLA(GatedSum):
    """A decay per key channel, of low rank."""

    config: GLAConfig

    def beside(self) -> dict[str, int]:
        return {**super().beside(), "a1": self.config.decay_rank}

    def build(self) -> None:
        self.a2 = nn.Linear(self.config.decay_rank, self.config.heads * self.config.key_size)

    def keyed(self) -> tuple[str, ...]:
        return "a2.weight", "a2.bias"

    def control(self, beside: dict[str, T], ops: Ops[T]) -> Control[T]:
        logits = ops.linear(beside["a1"], self.a2.weight, self.a2.bias)
        return Control(log_sigmoid_decay(logits, self.config.decay_divisor, self.config.heads, ops))


class Retention(GatedSum):
    """A fixed decay per head."""

    config: RetentionConfig
    log_gate: Tensor  # (1, H, 1, 1)

    def __init__(self, site: Site, config: RetentionConfig) -> None:
        super().__init__(site, config)
        self.needs_position = config.positions is not None
        self.ropes = [site.rope(rotation) for rotation in config.rotations()]
        # not persistent, so that models on the meta device have values
        self.register_buffer("log_gate", torch.log1p(-fixed_shares(config.heads)).float(), persistent=False)

    def units(self, kind: str) -> Units | str | None:
        rotated = kind == "state" and self.ropes
        return "q and k that rotate by their number in a head" if rotated else super().units(kind)

    def features(self, q: T, k: T, step: Step[T]) -> tuple[T, T]:
        ops, heads = step.ops, self.config.key_heads
        for rope in self.ropes:
            assert rope is not None
            both = apply_rope(ops.concat([q, k], axis=1), step.absolute_rotation(rope), ops)
            q, k = ops.split(both, [heads, heads], axis=1)
        return super().features(q, k, step)

    def control(self, beside: dict[str, T], ops: Ops[T]) -> Control[T]:
        return Control(ops.parameter(self.log_gate))
