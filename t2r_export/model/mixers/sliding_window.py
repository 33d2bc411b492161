"""Softmax attention over a sliding window with attention sinks, for window and hybrid layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from t2r_export.model.mixers.banded import Band, append, empty_slot_mask, products, rotated_buffer, transposed
from t2r_export.model.mixers.base import Heads, HeadSizes
from t2r_export.model.mixers.rows import Rows
from t2r_export.model.ops import MASKED, Ops, State, T
from t2r_export.model.positions.pairs import Known, Pairs
from t2r_export.model.positions.turns import apply_rope
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


@dataclass(frozen=True)
class SlidingWindow:
    """Softmax over the last W tokens and the first s tokens, the sinks (StreamingLLM, Xiao et al. 2023, arXiv
    2309.17453). With a dilation, only some of the last W: see `Band`.

    The states are buffers of the last W keys and values and of the sinks. With `rope`, keys are stored unrotated and
    rotated by their buffer position, so that angles stay bounded; the query is at position min(t, W + s - 1). Tokens in
    the window have their true distance; sink i has its true distance, but at most W + s - 1 - i. Positions in scores
    have the same distances.
    """

    sizes: HeadSizes
    window: int
    sinks: int
    rope: int | None
    dilation: int = 1
    local: int = 1
    stored: Rows = Rows()  # of the window; sinks are float32

    @property
    def band(self) -> Band:
        return Band(self.window, self.dilation, self.local)

    @property
    def per_group(self) -> int:
        return self.sizes.heads // self.sizes.kv_heads

    @property
    def last(self) -> int:
        """Largest query position relative to the sinks."""
        return self.window + self.sinks - 1

    def state_spec(self) -> list[StateSpec]:
        G, d = self.sizes.kv_heads, self.sizes.size
        near = [spec for name in ("k", "v") for spec in self.stored.state_spec(name, G, self.window, d)]
        sinks = ("sink_k", "sink_v") if self.sinks else ()
        return near + [StateSpec(name, "float32", (BATCH, G, self.sinks, d)) for name in sinks]

    def append(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[Heads[T], dict[str, T], State[T]]:
        """The heads with k and v as they are read later, evicted k and v (B, G, T, ·), and the buffers after."""
        ops, after, gone, read = step.ops, dict[str, T](), dict[str, T](), dict[str, T]()
        for name, x in (("k", heads.k), ("v", heads.v)):
            new, read[name] = self.stored.stored(name, x, ops)
            if ops.many:
                joined, whole = self.stored.joined(name, state, new, read[name], ops)  # (B, G, W + T, ·)
                gone[name] = ops.drop_last(whole, self.window)
                after |= {part: ops.kept_buffer(rows, self.window) for part, rows in joined.items()}
            else:
                pairs = {part: append(state[part], row, ops) for part, row in new.items()}
                gone[name] = self.stored.read(name, {part: first for part, (first, _) in pairs.items()}, ops)
                after |= {part: rest for part, (_, rest) in pairs.items()}
        heads = replace(heads, k=read["k"], v=read["v"])
        return heads, gone, {**after, **self._sinks_after(heads, state, step, of_states=True)}

    def _sinks_after(self, heads: Heads[T], state: State[T], step: Step[T], of_states: bool) -> State[T]:
        """The sinks after these tokens, for the states or for this run's queries."""
        if not self.sinks:
            return {}
        ops = step.ops
        here, free = self._sink_slots(step, of_states and not ops.keeps_all)
        pairs = (("sink_k", heads.k), ("sink_v", heads.v))
        return {name: ops.add(ops.mul(state[name], free), ops.matmul(here, new)) for name, new in pairs}

    def _sink_slots(self, step: Step[T], of_kept: bool) -> tuple[T, T]:
        """One-hot (B, 1, s, T) assignment of tokens to sinks, and (B, 1, s, 1), 1 for sinks without a new token."""

        def compute() -> tuple[T, T]:
            ops = step.ops
            distance = ops.sub(self._slot_numbers(ops), transposed(step.numbers, ops))
            here = ops.relu(ops.sub(1.0, ops.mul(distance, distance)))
            here = ops.of_kept(here) if of_kept else here
            return here, ops.sub(1.0, ops.reduce_max(here))

        return step.shared(("sink slots", self.sinks, of_kept), compute)

    def _slot_numbers(self, ops: Ops[T]) -> T:
        """Slot numbers (s, 1)."""
        return ops.constant(np.arange(float(self.sinks))[:, None], "float32", f"slots_{self.sinks}")

    def scores(self, heads: Heads[T], state: State[T], after: State[T], step: Step[T]) -> tuple[list[T], list[T]]:
        """Masked scores of sinks and window, concatenated in a one-item list, and the list of their values.

        `heads` and `after` are those that `append` returns.
        Rows are (B, G, R) in a step and (B, G, N, R·C) for many tokens; `outputs` restores them.
        """
        ops, G, positions = step.ops, self.sizes.kv_heads, self.sizes.positions
        q = heads.q if positions is None else positions.queries(heads.q, ops)
        q = ops.mul(q, self.sizes.scale)
        if ops.many:
            band = self.band
            rows = band.queries(q, G, ops)
            past = (self.stored.read(name, state, ops) for name in ("k", "v"))
            keys, values = (band.keys(*pair, ops) for pair in zip(past, (heads.k, heads.v), strict=True))
            if self.rope is not None:
                rows, keys = band.rotated(rows, keys, self.rope, self.per_group, step)
        else:
            keys, values, here = self.stored.read("k", after, ops), self.stored.read("v", after, ops), q
            if self.rope is not None:
                here, keys = rotated_buffer(q, keys, self.rope, step)
            rows = ops.group_queries(here, G)
        scores, parts = products(rows, keys, ops, self.sizes.softcap), [values]
        if positions is not None:
            scores = positions.scores(scores, heads.q, self._near(step), ops)
        if self.sinks:
            seen = after if ops.keeps_all else self._sinks_after(heads, state, step, of_states=False)
            of_sinks = self._sink_scores(q, seen["sink_k"], step)
            if positions is not None:
                of_sinks = positions.scores(of_sinks, heads.q, self._first(step), ops)
            scores = ops.concat([of_sinks, scores])
            parts.insert(0, ops.unsqueeze(seen["sink_v"], 2) if ops.many else seen["sink_v"])
        return [ops.add(scores, self._bias(step))], parts

    def _near(self, step: Step[T]) -> Pairs[T]:
        """Queries and the window's keys."""
        distance = self.band.distance() if step.ops.many else self._ages()[None]
        return self._pairs(distance, self.window - 1, "x".join(map(str, distance.shape)), step)

    def _ages(self) -> Known:
        """Distances (W,) of buffered tokens behind the query."""
        return np.arange(self.window - 1, -1, -1)

    def _first(self, step: Step[T]) -> Pairs[T]:
        """Queries and the sinks."""
        ops, name = step.ops, f"sinks_{self.window}_{self.sinks}"

        def distance() -> T:  # (B, 1, T, s)
            place = ops.minimum(step.numbers, float(self.last))
            return ops.sub(place, ops.squeeze(self._slot_numbers(ops), 1))

        return self._pairs(step.shared(name, distance), self.last, name, step)

    def _pairs(self, distance: T | Known, last: int, name: str, step: Step[T]) -> Pairs[T]:
        def rows(x: T) -> T:
            return self.rows(x, step)

        return Pairs(step, self.per_group, self.sizes.kv_heads, distance, rows, step.ops.many, last, name)

    def _sink_scores(self, q: T, sinks: T, step: Step[T]) -> T:
        """Scores of the sinks, soft-capped."""
        ops, G, softcap = step.ops, self.sizes.kv_heads, self.sizes.softcap
        if self.rope is not None:
            q = apply_rope(q, step.rotation(self.rope, self.last), ops)
            sinks = apply_rope(sinks, step.rotation_between(self.rope, 0, self.sinks), ops)
        if not ops.many:
            return products(ops.group_queries(q, G), sinks, ops, softcap)
        scores = ops.matmul(self.band.queries(q, G, ops), ops.unsqueeze(transposed(sinks, ops), 2))
        return ops.soft_cap(scores, softcap)

    def _bias(self, step: Step[T]) -> T:
        """Mask of the scores: `MASKED` for empty slots and tokens outside the window, else 0."""

        def compute() -> T:
            ops, W, s = step.ops, self.window, self.sinks
            if not ops.many:  # slots fill after this many tokens; those of the window after the sinks
                valid_from = np.concatenate([np.arange(float(s)), np.arange(W - 1.0, -1.0, -1.0) + s])
                slots = ops.constant(valid_from, "float32", f"valid_from_{s}_{W}")
                missing = ops.mul(empty_slot_mask(slots, step.numbers, ops), MASKED)
                if self.dilation == 1:
                    return missing
                between = np.concatenate([np.zeros(s), self.band.hidden(self._ages()) * MASKED])
                return ops.add(
                    missing, ops.constant(between, "float32", f"between_{s}_{W}_{self.dilation}_{self.local}")
                )
            band = self.band
            bias = band.bias(step, s, self.per_group)
            if not s:
                return bias
            yet = empty_slot_mask(ops.squeeze(self._slot_numbers(ops), 1), step.numbers, ops)  # (B, 1, T, s)
            yet = ops.mul(band.queries(yet, 1, ops), MASKED)  # (B, 1, N, C, s)
            return ops.concat([ops.concat([yet] * self.per_group, axis=3), bias])

        return step.shared(("window bias", self.band, self.sinks, self.per_group), compute)

    def rows(self, q: T, step: Step[T]) -> T:
        """Queries (B, H, T, d) -> rows, as in `scores`."""
        G = self.sizes.kv_heads
        return self.band.queries(q, G, step.ops) if step.ops.many else step.ops.group_queries(q, G)

    def outputs(self, y: T, step: Step[T]) -> T:
        """Rows as in `scores` -> (B, H, T, ·)."""
        H = self.sizes.heads
        return self.band.outputs(y, H, step.ops) if step.ops.many else step.ops.ungroup_queries(y, H)
