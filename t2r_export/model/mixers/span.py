"""Adaptive attention span: softmax attention in which every head learns how far back it looks (Sukhbaatar et al. 2019,
arXiv 1905.07799).

A token at distance x weighs m(x)·exp(score), where the soft mask m(x) = clamp((R + z - x) / R, 0, 1) (eq. 3) falls from
1 to 0 over the ramp R behind the head's learned span z. Training adds z to the loss (`penalty`, eq. 7), so that a head
keeps only what it needs.

In training the state is a buffer of the largest span for every kv head. The fold gives each kv head a buffer of its
own, as long as the longest span among its query heads, ⌈R + z⌉ tokens; the masks become constants. Nothing that was
cut off weighed anything, so the two are the same function. Rotary positions rotate a key by its place in the buffer,
as in `mixers.window`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config.mixers import SpanConfig
from t2r_export.model.mixers.banded import Band, append, attend, empty_slot_mask, rotated_buffer
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.ops import MASKED, State, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import BATCH, StateSpec


class Group(NamedTuple):
    """kv heads that share a buffer of one length: all of them in training, each its own where folded."""

    end: str  # of the states' names
    heads: int
    length: int


class SpanMixer(AttentionMixer):
    """Softmax attention with a soft mask over distances for each query head, learned or, folded with its masks as
    constants."""

    rotates = False
    needs_position = True
    config: SpanConfig
    ages: Tensor  # (span)

    def __init__(self, sizes: HeadSizes, config: SpanConfig) -> None:
        super().__init__(sizes, config)
        R = sizes.heads // sizes.kv_heads
        # of the slots, oldest first; on the CPU even where a model is laid out on the meta device
        ages = torch.arange(config.span - 1, -1, -1, device="cpu").float()
        self.register_buffer("ages", ages, persistent=False)
        if config.folded:
            for g, length in enumerate(config.spans):
                self.register_buffer(f"log_mask_{g}", torch.zeros(R, length))
        else:
            self.span = nn.Parameter(torch.ones(sizes.heads))  # z as a share of what it can be, at first all

    def mask(self) -> Tensor:
        """m (H, span) at each distance, 0 to span - 1."""
        R, reach = self.config.ramp, self.config.span - self.config.ramp
        inside = self.span.clamp(0, 1)
        z = (self.span + (inside - self.span).detach()) * reach  # past its bounds a span can still be called back
        distance = self.ages.flip(0).to(z.dtype)
        return ((R + z[:, None] - distance) / R).clamp(0, 1)

    def penalty(self) -> Tensor:
        """λ times the mean span, as a share of the largest."""
        return self.config.span_loss * self.span.clamp(0, 1).mean()

    def log_mask(self) -> Tensor:
        """log m (H, span) at each distance, `MASKED` where m is 0, with what positions add to scores there."""
        if not self.config.folded:
            m = self.mask()
            log_m = torch.where(m > 0, m.clamp(min=torch.finfo(m.dtype).tiny).log(), MASKED)
            return log_m if self.sizes.bias is None else log_m + self._known_bias(self.sizes.bias).to(log_m)
        missing = [self.config.span - length for length in self.config.spans]
        rows = [F.pad(self.get_buffer(f"log_mask_{g}"), (n, 0), value=MASKED) for g, n in enumerate(missing)]
        return torch.cat(rows).flip(-1)

    def _known_bias(self, positions: Positions) -> Tensor:
        return torch.from_numpy(positions.known_bias(np.arange(self.config.span)[None])).squeeze(1)

    @property
    def groups(self) -> list[Group]:
        if not self.config.folded:
            return [Group("", self.sizes.kv_heads, self.config.span)]
        return [Group(str(g), 1, length) for g, length in enumerate(self.config.spans)]

    def _log_mask(self, group: Group, step: Step[T]) -> T:
        """log m (heads · R, length) of a group's slots, oldest first."""
        if self.config.folded:
            return step.ops.parameter(self.get_buffer(f"log_mask_{group.end}"))
        return step.ops.parameter(self.log_mask().flip(-1))  # the exporter folds, so this is never recorded

    def _split(self, x: T, step: Step[T]) -> list[T]:
        """x (B, heads, T, d) -> a part for each group."""
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
        """One token's output (B, heads · R, 1, d), and the buffers of k and v after it."""
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
        """The same of T tokens."""
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
        """Tokens that each kv head needs: as many as the query head of its group with the longest span."""
        if self.config.folded:
            return self.config.spans
        used = (self.mask() > 0).sum(-1)  # (H): the mask only falls
        return tuple(used.view(self.sizes.kv_heads, -1).max(-1).values.tolist())

    @torch.no_grad()
    def fold(self, like: Tensor) -> SpanMixer:
        """A buffer of its own length for every kv head, and the masks as constants."""
        config = dataclasses.replace(self.config, folded=True, spans=self.spans())
        folded = SpanMixer(self.sizes, config).to(like)
        kept = {name: weight for name, weight in self.state_dict().items() if name != "span"}
        masks = self.log_mask().flip(-1).view(self.sizes.kv_heads, -1, self.config.span)
        kept |= {f"log_mask_{g}": masks[g, :, -length:] for g, length in enumerate(config.spans)}
        folded.load_state_dict(kept)
        return folded

    def fold_state(self, state: State[Tensor]) -> State[Tensor]:
        return state if self.config.folded else self._cut(state)

    def _cut(self, state: State[Tensor]) -> State[Tensor]:
        """States at full length, `k` and `v`, as the folded mixer keeps them."""
        lengths = enumerate(self.spans())
        return {f"{name}{g}": state[name][:, g : g + 1, -length:] for g, length in lengths for name in "kv"}
