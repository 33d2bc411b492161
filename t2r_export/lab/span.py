"""Adaptive attention span: softmax attention with a learned span per head (Sukhbaatar et al. 2019, arXiv 1905.07799).

A token at distance x has weight m(x)·exp(score), where the soft mask m(x) = clamp((R + z - x) / R, 0, 1) (eq. 3) falls
from 1 to 0 over the ramp R beyond the learned span z. The loss includes z (`penalty`, eq. 7).

In training, the buffers of all kv heads have the largest span. Folding shortens each kv head's buffer to the longest
span ⌈R + z⌉ of its query heads and makes the masks constant, without changing the function. Rotary positions rotate
keys by their buffer position, as in `mixers.window`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.lab.config.span import SpanConfig
from t2r_export.model.mixers.banded import Band, append, attend, empty_slot_mask, rotated_buffer
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.ops import MASKED, State, T
from t2r_export.model.positions.scores import DistanceBias
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class Group(NamedTuple):
    """kv heads that share a buffer: all heads in training, one head each if folded."""

    end: str  # suffix of state names
    heads: int
    length: int


class SpanMixer(AttentionMixer):
    """Softmax attention with a soft mask over distances per query head."""

    rotates = False
    needs_position = True
    config: SpanConfig
    ages: Tensor  # (span)

    def __init__(self, sizes: HeadSizes, config: SpanConfig) -> None:
        super().__init__(sizes, config)
        R = sizes.heads // sizes.kv_heads
        # of the slots, oldest first; on the CPU, so that models on the meta device have values
        ages = torch.arange(config.span - 1, -1, -1, device="cpu").float()
        self.register_buffer("ages", ages, persistent=False)
        if config.folded:
            for g, length in enumerate(config.spans):
                self.register_buffer(f"log_mask_{g}", torch.zeros(R, length))
        else:
            self.span = nn.Parameter(torch.ones(sizes.heads))  # z as a fraction of the maximum

    def mask(self) -> Tensor:
        """m (H, span) for distances 0 to span - 1."""
        R, reach = self.config.ramp, self.config.span - self.config.ramp
        inside = self.span.clamp(0, 1)
        z = (self.span + (inside - self.span).detach()) * reach  # gradients also flow outside the bounds
        distance = self.ages.flip(0).to(z.dtype)
        return ((R + z[:, None] - distance) / R).clamp(0, 1)

    def penalty(self) -> Tensor:
        """span_loss times the mean span as a fraction of the maximum."""
        return self.config.span_loss * self.span.clamp(0, 1).mean()

    def log_mask(self) -> Tensor:
        """log m (H, span) per distance (`MASKED` where m is 0) plus the position bias."""
        if not self.config.folded:
            m = self.mask()
            log_m = torch.where(m > 0, m.clamp(min=torch.finfo(m.dtype).tiny).log(), MASKED)
            if not isinstance(self.positions, DistanceBias):
                return log_m
            return log_m + self.positions.by_distance(self.config.span).to(log_m)
        missing = [self.config.span - length for length in self.config.spans]
        rows = [F.pad(self.get_buffer(f"log_mask_{g}"), (n, 0), value=MASKED) for g, n in enumerate(missing)]
        return torch.cat(rows).flip(-1)

    @property
    def groups(self) -> list[Group]:
        if not self.config.folded:
            return [Group("", self.sizes.kv_heads, self.config.span)]
        return [Group(str(g), 1, length) for g, length in enumerate(self.config.spans)]

    def _log_mask(self, group: Group, step: Step[T]) -> T:
        """log m (heads · R, length) of a group, oldest slot first."""
        if self.config.folded:
            return step.ops.parameter(self.get_buffer(f"log_mask_{group.end}"))
        return step.ops.parameter(self.log_mask().flip(-1))  # never recorded: exports fold first

    def _split(self, x: T, step: Step[T]) -> list[T]:
        """Split x (B, heads, T, d) by group."""
        share = x.shape[1] // self.sizes.kv_heads
        return step.ops.split(x, [group.heads * share for group in self.groups], axis=1)

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, out = step.ops, []
        after: State[T] = {}
        q = ops.mul(heads.q, self.sizes.scale)
        attend_group = self._attend_band if ops.many else self._attend_buffer
        for group, *parts in zip(self.groups, *(self._split(x, step) for x in (q, heads.k, heads.v)), strict=True):
            names = f"k{group.end}", f"v{group.end}"
            q_g, k_g, v_g = parts
            o, after[names[0]], after[names[1]] = attend_group(group, q_g, (k_g, v_g), [state[n] for n in names], step)
            out.append(o)
        return ops.concat(out, axis=1), {name: after[name] for name in state}

    def _attend_buffer(self, group: Group, q: T, new: Sequence[T], past: Sequence[T], step: Step[T]) -> tuple[T, T, T]:
        """Output (B, heads · R, 1, d) of one token, and the buffers of k and v after it."""
        ops, n = step.ops, group.length
        keys, v_after = (append(buffer, x, ops)[1] for buffer, x in zip(past, new, strict=True))
        k_after = keys
        if self.sizes.rope is not None:
            q, keys = rotated_buffer(q, keys, self.sizes.rope, step)
        ages = ops.constant(np.arange(n - 1.0, -1.0, -1.0), "float32", f"ages_{n}")
        missing = ops.mul(empty_slot_mask(ages, step.numbers, ops), MASKED)  # (B, 1, 1, n)
        bias = ops.reshape(self._log_mask(group, step), (group.heads, -1, n))
        rows = ops.group_queries(q, group.heads)
        y, _, _ = attend(rows, keys, v_after, ops, ops.add(bias, missing), self.sizes.softcap)
        return ops.ungroup_queries(y, q.shape[1]), k_after, v_after

    def _attend_band(self, group: Group, q: T, new: Sequence[T], past: Sequence[T], step: Step[T]) -> tuple[T, T, T]:
        """`_attend_buffer` for T tokens."""
        ops, n, heads = step.ops, group.length, q.shape[1]
        band, per_group = Band(n), heads // group.heads
        rows = band.queries(q, group.heads, ops)
        keys, values = (band.keys(buffer, x, ops) for buffer, x in zip(past, new, strict=True))
        if self.sizes.rope is not None:
            rows, keys = band.rotated(rows, keys, self.sizes.rope, per_group, step)
        slots = ops.constant(np.clip(n - 1 - band.distance(), 0, n - 1), "int64", f"slots_of_band_{n}")  # (C, L)
        table = ops.transpose(self._log_mask(group, step), (1, 0))  # (n, heads · R)
        soft = ops.transpose(ops.embedding(slots, table), (2, 0, 1))  # (heads · R, C, L)
        soft = ops.reshape(soft, (group.heads, 1, per_group * band.chunk, band.length))
        bias = ops.add(band.bias(step, 0, per_group), soft)
        y, _, _ = attend(rows, keys, values, ops, bias, self.sizes.softcap)
        k_after, v_after = (ops.kept_buffer(ops.concat(pair, axis=2), n) for pair in zip(past, new, strict=True))
        return band.outputs(y, heads, ops), k_after, v_after

    def state_spec(self) -> list[StateSpec]:
        d = self.sizes.size
        return [
            StateSpec(f"{name}{group.end}", "float32", (BATCH, group.heads, group.length, d))
            for group in self.groups
            for name in "kv"
        ]

    def memory_length(self) -> int:
        return self.config.span

    def why_not_foldable(self) -> str | None:
        return None

    def spans(self) -> tuple[int, ...]:
        """Buffer length of each kv head: the longest span of its query heads."""
        if self.config.folded:
            return self.config.spans
        used = (self.mask() > 0).sum(-1)  # (H); masks are monotonic
        return tuple(used.view(self.sizes.kv_heads, -1).max(-1).values.tolist())

    @torch.no_grad()
    def fold(self, like: Tensor) -> SpanMixer:
        """Constant masks, with the position bias inside, and a buffer length per kv head."""
        config = dataclasses.replace(self.config, folded=True, spans=self.spans())
        folded = SpanMixer(dataclasses.replace(self.sizes, positions=None), config).to(like)
        kept = {name: self.state_dict()[name] for name in folded.state_dict() if not name.startswith("log_mask_")}
        masks = self.log_mask().flip(-1).view(self.sizes.kv_heads, -1, self.config.span)
        kept |= {f"log_mask_{g}": masks[g, :, -length:] for g, length in enumerate(config.spans)}
        folded.load_state_dict(kept)
        return folded

    def fold_state(self, state: State[Tensor]) -> State[Tensor]:
        return state if self.config.folded else self._cut(state)

    def _cut(self, state: State[Tensor]) -> State[Tensor]:
        """Convert full-length buffers to those of the folded mixer."""
        lengths = enumerate(self.spans())
        return {f"{name}{g}": state[name][:, g : g + 1, -length:] for g, length in lengths for name in "kv"}
