"""Softmax over a window and linear attention to all earlier tokens (LoLCATs, Zhang et al. 2024, arXiv 2410.10254,
section 3.2).

A token enters S and z when it leaves the window of the last W tokens. With c the largest score in the window,

    sum    o = (γ Σ exp(q·k_i/√d - c) v_i + φ(q)ᵀS) / (γ Σ exp(q·k_i/√d - c) + φ(q)·z)     (their eq. 6)
    gate   o = g softmax(q·k/√d) v + (1 - g) φ(q)ᵀS / guard(φ(q)·z)
    token  as gate, with g_t = sigmoid(w_m·x_t + b_m) (as arXiv 2603.15590)

with a learned factor γ or gate g per query head. While no token has left the window, S and z are zero and the output is
softmax attention. Rotary models store rotated keys, whose features are those of `mixers.linear` with positions='keep'.
With positions='after', keys are stored unrotated and rotate by their position in the window, and features rotate by
their position in the text. Sinks, the first tokens, stay visible and never enter S and z.

With the update rule `gated`, S and z decay at every step:

    S_t = g_t S_{t-1} + φ(k_{t-W}) v_{t-W}ᵀ      z_t = g_t z_{t-1} + φ(k_{t-W})

g_t is fixed per head or computed from the current token x_t (`mixers.gates`); the gate of token t - W would need a
buffer of W gates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import HybridConfig
from t2r_export.model.mixers.banded import empty_slot_mask, weighted
from t2r_export.model.mixers.base import Attended, AttentionMixer, Heads, HeadSizes
from t2r_export.model.mixers.channels import channels
from t2r_export.model.mixers.feature_maps import FeatureMaps, dead_features
from t2r_export.model.mixers.gates import Gates, OutputGate
from t2r_export.model.mixers.linear import attend
from t2r_export.model.mixers.maps import EPS
from t2r_export.model.mixers.rows import Rows
from t2r_export.model.mixers.sliding_window import SlidingWindow
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.positions.turns import Rotation, apply_rope
from t2r_export.model.step import Step
from t2r_export.model.units import Units
from t2r_runtime.contract.state_spec import BATCH, StateSpec

LEAST_FAR = 0.01  # share of the sums at the start: without any they have no gradient
LARGEST_MERGE = 50.0  # of |log γ| at the start
OPEN_GATE = 2.0  # initial logit of a merge gate: weight sigmoid(2) = 0.88 for the window


class HybridMixer(AttentionMixer):
    """A softmax window over the last tokens, linear attention over all earlier tokens."""

    needs_position = True
    config: HybridConfig

    def __init__(self, sizes: HeadSizes, config: HybridConfig) -> None:
        super().__init__(sizes, config)
        linear = config.linear()
        self.rotates = config.positions == "keep"
        rope, rows = None if self.rotates else sizes.rope, Rows(config.cache_bits)
        self.near = SlidingWindow(sizes, config.window, config.sinks, rope, stored=rows)
        self.maps = FeatureMaps(sizes.heads, sizes.kv_heads, sizes.size, linear)
        with torch.no_grad():  # distant tokens can outweigh the window from the first step on
            for weight in self.maps.parameters() if config.map_scale != 1.0 else ():
                weight.mul_(config.map_scale)
        self.gates = Gates(sizes.width, sizes.kv_heads, linear)
        # log γ, or the gate's logit or bias
        self.merge = nn.Parameter(torch.full((sizes.heads,), 0.0 if config.merge == "sum" else OPEN_GATE))
        if config.merge == "token":
            self.merge_weight = nn.Parameter(torch.zeros(sizes.heads, sizes.width))
        if config.output_gate:
            self.output_gate = OutputGate(sizes.width, sizes.heads, sizes.size, folded=False)

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        near, largest, far, far_weight, after = self._halves(heads, state, step)
        o = self._merged(near, largest, far, far_weight, self._merge(heads.x, ops), self._gone(step), ops)
        if self.config.output_gate:
            o = self.output_gate(o, self.output_gate.logits(heads.x, ops), ops)
        return o, after

    def _halves(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, T, T, T, State[T]]:
        """The window's output and largest weight, the numerator and denominator of linear attention, as `_merged` takes
        them, and the states after."""
        ops = step.ops
        heads, evicted, after = self.near.append(heads, state, step)
        gone = self._gone(step)
        q, k = self.maps.features(*self._arguments(heads, evicted["k"], step), ops)
        control = self.gates.control(self.gates.logits(heads.x, ops), ops)
        k = ops.mul(k, gone)
        far, far_weight, S, z = attend(q, k, evicted["v"], state, control, *self._rotations(step), ops)
        assert far_weight is not None and z is not None
        y, weights = weighted(*self.near.scores(heads, state, after, step), ops)
        near, largest = (self.near.outputs(part, step) for part in (y, ops.reduce_max(weights)))
        return near, largest, far, far_weight, {**after, "S": S, "z": z}

    def _arguments(self, heads: Heads[T], k: T, step: Step[T]) -> tuple[T, T]:
        """q and evicted k for φ, rotated by wrapped positions if positions wrap."""
        rope = self.sizes.rope
        if step.wrap is None or rope is None or not self.rotates:
            return heads.q, k
        q = apply_rope(heads.plain_q, step.absolute_rotation(rope), step.ops)
        return q, apply_rope(k, step.rotation_to_place(rope, self.config.window), step.ops)

    def _rotations(self, step: Step[T]) -> tuple[Rotation[T] | None, Rotation[T] | None]:
        """Rotations of φ(q) and of the evicted φ(k), W tokens apart; both are shifted by W to be nonnegative."""
        rope = self.sizes.feature_rope
        return (None, None) if rope is None else (step.rotation(rope, ahead=self.config.window), step.rotation(rope))

    def _gone(self, step: Step[T]) -> T:
        """(B, 1, T, 1), 1 where the evicted token exists and is no sink."""
        ops, full = step.ops, float(self.config.window + self.config.sinks)
        return step.shared(("gone", full), lambda: ops.sub(1.0, empty_slot_mask(full, step.numbers, ops)))

    def _merge(self, x: T, ops: Ops[T]) -> T:
        """log γ or gate logits: (H, 1, 1), or (B, H, T, 1) computed from rows x (N, D)."""
        merge = ops.parameter(self.merge)
        if self.config.merge == "token":
            return ops.split_heads(ops.add(ops.linear(x, self.merge_weight, None), merge), self.sizes.heads)
        return ops.reshape(merge, (self.sizes.heads, 1, 1))

    def _merged(self, near: T, largest: T, far: T, far_weight: T, merge: T, gone: T, ops: Ops[T]) -> T:
        """Merge the window's output (B, H, T, d) and largest weight (B, H, T, 1) with linear attention's numerator
        (B, H, T, d) and denominator (B, H, T, 1)."""
        if self.config.merge == "sum":
            # Σ exp(score - c) = 1 / largest weight
            factor = ops.div(ops.exp(merge), largest)
            return ops.div(ops.add(ops.mul(near, factor), far), ops.add(factor, far_weight))
        closed = ops.mul(ops.sigmoid(ops.mul(merge, -1.0)), gone)  # 1 - g, and 0 while S is empty
        kept, guard = ops.mul(near, ops.sub(1.0, closed)), self.config.guard
        divided = ops.div(far, ops.guarded(far_weight, guard.kind, guard.eps))
        return ops.add(kept, ops.mul(divided, closed))

    def near_tokens(self) -> tuple[int, int]:
        return self.config.window, self.config.sinks

    def is_new(self) -> bool:
        return self.maps.is_new or self.gates.is_new or self._merge_is_new

    @property
    def _merge_is_new(self) -> bool:
        start = 0.0 if self.config.merge == "sum" else OPEN_GATE
        trained = self.config.merge == "token" and bool(self.merge_weight.any())
        return not trained and bool((self.merge == start).all())

    @torch.no_grad()
    def start(self, seen: Attended) -> None:
        """As `AttentionMixer.start`. γ or g gives the sums the share of attention that the teacher's heads have beyond
        the window and the sinks, but at least LEAST_FAR."""
        merge_is_new = self._merge_is_new
        self.gates.start_at(seen.distance)
        self.maps.start_at(seen.q, seen.k, None, seen.step.ops)
        if seen.far is None or not merge_is_new:
            return
        wanted = seen.far.clamp(LEAST_FAR, 1 - LEAST_FAR)
        if self.config.merge != "sum":
            self.merge.copy_(-torch.logit(wanted))
            return
        odds = torch.cat([self._far_odds(heads, seen.state, seen.step)[0] for heads in seen.heads], 1).double()
        low, high = (torch.full_like(odds[:, :1], end) for end in (-LARGEST_MERGE, LARGEST_MERGE))
        for _ in range(50):  # bisection: the share falls with log γ
            middle = (low + high) / 2
            above = torch.sigmoid(odds - middle).mean(1, keepdim=True) > wanted.unsqueeze(1)
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        self.merge.copy_(low[:, 0])

    def far_share(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> Tensor:
        """Share of linear attention in the output, for all queries of a sequence from the first with such a token on,
        (B, H, queries)."""
        merge = self._merge(heads.x, step.ops)[..., 0]  # (H, 1) or (B, H, T)
        if self.config.merge == "token":
            return torch.sigmoid(-merge[:, :, sum(self.near_tokens()) :])
        odds = self._far_odds(heads, state, step)
        return torch.sigmoid((odds if self.config.merge == "sum" else torch.zeros_like(odds)) - merge)

    def _far_odds(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> Tensor:
        """Merge sum: log of the sums' weight over the window's with γ = 1; shape as in `far_share`."""
        _, largest, _, weight, _ = self._halves(heads, state, step)
        return (weight * largest)[:, :, sum(self.near_tokens()) :, 0].clamp(min=EPS).log()

    def statistics(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """Fractions of features that are 0 for all tokens, and the share of the sums in attention, mean over heads and
        queries beyond window and sinks."""
        found = dead_features(*self.maps.features(*self._arguments(heads, heads.k, step), step.ops))
        share = self.far_share(heads, state, step)
        return {**found, **({"far_share": share.mean()} if share.numel() else {})}

    def state_spec(self) -> list[StateSpec]:
        G, K, d = self.sizes.kv_heads, self.config.feature_size, self.sizes.size
        sums = {"S": (G, K, d), "z": (G, K)}
        return [
            *self.near.state_spec(),
            *(StateSpec(name, "float32", (BATCH, *shape)) for name, shape in sums.items()),
        ]

    def channels(self) -> Units | str:
        return channels(self.config, self.sizes)

    def why_heads_count(self) -> str | None:
        return self.gates.why_heads_count()

    def memory_length(self) -> int:
        return self.config.window + self.config.sinks + 1

    def why_not_foldable(self) -> str | None:
        return "keys are mapped to features when they leave the window"
