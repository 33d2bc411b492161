"""Linear attention and a softmax window in one layer: what is near exactly, what is far in a sum (LoLCATs, Zhang et al.
2024, arXiv 2410.10254, section 3.2).

A query sees the last W tokens, itself among them, by softmax, and every older one by its features: a token enters S and
z at the step at which it leaves the window. With c the largest score in the window,

    sum    o = (γ Σ exp(q·k_i/√d - c) v_i + φ(q)ᵀS) / (γ Σ exp(q·k_i/√d - c) + φ(q)·z)     (their eq. 6)
    gate   o = g softmax(q·k/√d) v + (1 - g) φ(q)ᵀS / guard(φ(q)·z)
    token  the same with g_t = sigmoid(w_m·x_t + b_m), computed from the present token (as arXiv 2603.15590)

with a learned factor γ, or gate g, for each query head. Until a token leaves, S and z are zero and both are softmax
attention (the gate is open then). In a rotary model keys are kept as it rotates them, and φ of a key that
leaves is what `mixers.linear` has for it with positions='keep'; or (positions='after') they are kept unrotated, rotate
by their place in the window, and their features at their place in the text. The first tokens of a text may be sinks:
they stay beside the window and never enter S and z.

With the update rule `gated`, S and z decay at every step, before they take in the token that leaves:

    S_t = g_t S_{t-1} + φ(k_{t-W}) v_{t-W}ᵀ      z_t = g_t z_{t-1} + φ(k_{t-W})

g_t is a head's own number, or computed from the present token x_t (`mixers.gates`). The leaving token's gate would have
to be kept in the buffer for W steps; the present one's needs no state, and tells as well that what is far has ended.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.mixers import HybridConfig
from t2r_export.model.mixers.banded import SlidingWindow, empty_slot_mask, weighted
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.mixers.feature_maps import FeatureMaps
from t2r_export.model.mixers.gates import Gates
from t2r_export.model.mixers.linear import attend
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.positions.turns import Rotation, apply_rope
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import BATCH, StateSpec

OPEN_GATE = 2.0  # where training of a gate starts: sigmoid(2) is 0.88, nearly the window alone


class HybridMixer(AttentionMixer):
    """A softmax window over the last tokens, linear attention over all before them."""

    needs_position = True
    config: HybridConfig

    def __init__(self, sizes: HeadSizes, config: HybridConfig) -> None:
        super().__init__(sizes, config)
        linear = config.linear()
        self.rotates = config.positions == "keep"
        self.near = SlidingWindow(sizes, config.window, config.sinks, None if self.rotates else sizes.rope)
        self.maps = FeatureMaps(sizes.heads, sizes.kv_heads, sizes.size, linear)
        self.gates = Gates(sizes.width, sizes.kv_heads, linear)
        # log γ, or what the gate is the sigmoid of: with `token` before x, whose part in it starts at 0, is added
        self.merge = nn.Parameter(torch.full((sizes.heads,), 0.0 if config.merge == "sum" else OPEN_GATE))
        if config.merge == "token":
            self.merge_weight = nn.Parameter(torch.zeros(sizes.heads, sizes.width))

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        evicted, after = self.near.append(heads, state, step)
        gone = self._gone(step)
        q, k = self.maps.features(*self._arguments(heads, evicted["k"], step), ops)
        control = self.gates.control(self.gates.logits(heads.x, ops), ops)
        k = ops.mul(k, gone)
        far, far_weight, S, z = attend(q, k, evicted["v"], state, control, *self._rotations(step), ops)
        assert far_weight is not None and z is not None
        y, weights = weighted(*self.near.scores(heads, state, after, step), ops)
        near, largest = (self.near.outputs(part, step) for part in (y, ops.reduce_max(weights)))
        o = self._merged(near, largest, far, far_weight, self._merge(heads.x, ops), gone, ops)
        return o, {**after, "S": S, "z": z}

    def _arguments(self, heads: Heads[T], k: T, step: Step[T]) -> tuple[T, T]:
        """q and the k that leaves as φ takes them: where positions wrap, those of the window do not, and these do."""
        rope = self.sizes.rope
        if step.wrap is None or rope is None or not self.rotates:
            return heads.q, k
        q = apply_rope(heads.plain_q, step.absolute_rotation(rope), step.ops)
        return q, apply_rope(k, step.rotation_to_place(rope, self.config.window), step.ops)

    def _rotations(self, step: Step[T]) -> tuple[Rotation[T] | None, Rotation[T] | None]:
        """Of φ(q) and of the φ(k) that leaves, W tokens behind it: both as many ahead, so that none is negative."""
        rope = self.sizes.feature_rope
        return (None, None) if rope is None else (step.rotation(rope, ahead=self.config.window), step.rotation(rope))

    def _gone(self, step: Step[T]) -> T:
        """(B, 1, T, 1), 1 where a token leaves the window that is no sink."""
        ops, full = step.ops, float(self.config.window + self.config.sinks)
        gone: T = step.shared(("gone", full), lambda: ops.sub(1.0, empty_slot_mask(full, step.numbers, ops)))
        return gone

    def _merge(self, x: T, ops: Ops[T]) -> T:
        """log γ, or what the gate is the sigmoid of: (H, 1, 1), or of the tokens in rows x (N, D), (B, H, T, 1)."""
        merge = ops.parameter(self.merge)
        if self.config.merge == "token":
            return ops.split_heads(ops.add(ops.linear(x, self.merge_weight, None), merge), self.sizes.heads)
        return ops.reshape(merge, (self.sizes.heads, 1, 1))

    def _merged(self, near: T, largest: T, far: T, far_weight: T, merge: T, gone: T, ops: Ops[T]) -> T:
        """The window's softmax (B, H, T, d) with its largest weight (B, H, T, 1), and what the features give with
        values and without, as one (B, H, T, d)."""
        if self.config.merge == "sum":
            # Σ exp(score - c) is 1 / the largest weight, since that of the largest score c is 1
            factor = ops.div(ops.exp(merge), largest)
            return ops.div(ops.add(ops.mul(near, factor), far), ops.add(factor, far_weight))
        closed = ops.mul(ops.sigmoid(ops.mul(merge, -1.0)), gone)  # 1 - g, and 0 until there is something far
        return ops.add(ops.mul(near, ops.sub(1.0, closed)), ops.mul(self._divided(far, far_weight, ops), closed))

    def _divided(self, far: T, far_weight: T, ops: Ops[T]) -> T:
        guard = self.config.guard
        return ops.div(far, ops.guarded(far_weight, guard.kind, guard.eps))

    def state_spec(self) -> list[StateSpec]:
        G, K, d = self.sizes.kv_heads, self.config.feature_size, self.sizes.size
        sums = {"S": (G, K, d), "z": (G, K)}
        return [
            *self.near.state_spec(),
            *(StateSpec(name, "float32", (BATCH, *shape)) for name, shape in sums.items()),
        ]

    def memory_length(self) -> int:
        return self.config.window + self.config.sinks + 1

    def why_not_foldable(self) -> str | None:
        return "a key gets its features when it leaves the window"
