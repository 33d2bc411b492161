"""Attention over a band: what the mixers share that look back a bounded number of tokens.

A step keeps its last tokens in a buffer, oldest first, and `append` moves them up by one. A sequence is cut into
chunks: the queries of a chunk see the keys of their own chunk and of the few before it that hold one window, so that
memory and time are linear in the length of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t2r_export.model.mixers.base import Heads, HeadSizes
from t2r_export.model.ops import MASKED, Ops, State, T
from t2r_export.model.positions.base import Positions
from t2r_export.model.positions.turns import apply_rope
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import BATCH, StateSpec

CHUNK = 32  # tokens: a prompt of a few tokens is filled up to it, and a long one has many such products side by side


def append(buffer: T, new: T, ops: Ops[T]) -> tuple[T, T]:
    """What leaves the buffer (B, G, W, d), its oldest entry, and the buffer with `new` (B, G, 1, d) at its end."""
    length = buffer.shape[2]
    if length == 1:
        return buffer, new
    evicted, rest = ops.split(buffer, [1, length - 1], axis=2)
    return evicted, ops.concat([rest, new], axis=2)


def rotated_buffer(q: T, keys: T, rope: int, step: Step[T]) -> tuple[T, T]:
    """q (B, H, 1, d) and the keys of a buffer (B, G, W, d), oldest first, rotated by their places behind q at 0."""
    keys = apply_rope(keys, step.rotation_between(rope, 1 - keys.shape[2], 1), step.ops)
    if step.ropes[rope].magnitude != 1.0:  # else a rotation by nothing
        q = apply_rope(q, step.rotation_between(rope, 0, 1), step.ops)
    return q, keys


def empty_slot_mask(valid_from: T | float, seen: T | float, ops: Ops[T]) -> T:
    """1 where fewer tokens were seen than a slot is valid from, and 0 elsewhere; integers as floats, broadcast."""
    missing = ops.sub(valid_from, seen)
    return ops.sub(ops.relu(missing), ops.relu(ops.sub(missing, 1.0)))


def attend(
    q: T, keys: T, values: T, ops: Ops[T], bias: T | None = None, softcap: float | None = None
) -> tuple[T, T, T]:
    """q (…, rows, d), keys and values (…, n, d) and what scores are changed by (rows, n) -> output (…, rows, d), scores
    and weights (…, rows, n)."""
    scores = ops.soft_cap(ops.matmul(q, transposed(keys, ops)), softcap)
    if bias is not None:
        scores = ops.add(scores, bias)
    weights = ops.softmax(scores)
    return ops.matmul(weights, values), scores, weights


def transposed(x: T, ops: Ops[T]) -> T:
    """The last two axes exchanged."""
    axes = list(range(len(x.shape)))
    return ops.transpose(x, [*axes[:-2], axes[-1], axes[-2]])


@dataclass(frozen=True)
class Band:
    """A window of W tokens over a sequence that is cut into chunks of C: it reaches into J chunks before each.

    L = (J + 1) · C keys are laid beside each chunk's queries; query c of a chunk stands at J·C + c of them.
    """

    window: int

    @property
    def chunk(self) -> int:
        return min(self.window, CHUNK)

    @property
    def before(self) -> int:
        return -(-self.window // self.chunk)

    @property
    def length(self) -> int:
        return (self.before + 1) * self.chunk

    def keys(self, past: T, new: T, ops: Ops[T]) -> T:
        """The buffer (B, G, W, d) and what follows it (B, G, T, d) -> what each chunk may see, (B, G, N, L, d)."""
        reach = self.before * self.chunk
        front = ops.pad_front(past, reach - self.window) if reach > self.window else past
        heads, size = front.shape[1], front.shape[3]
        front = ops.reshape(front, (0, heads, self.before, self.chunk, size))
        chunks = ops.concat([front, ops.blocks(new, self.chunk)], axis=2)  # (B, G, J + N, C, d)
        shifted = [
            ops.drop_last(ops.slice_from(chunks, j), self.before - j) if j < self.before else ops.slice_from(chunks, j)
            for j in range(self.before + 1)
        ]
        return ops.concat(shifted, axis=3)

    def queries(self, q: T, kv_heads: int, ops: Ops[T]) -> T:
        """q (B, H, T, d) -> (B, G, N, R·C, d): the queries of a kv head's R heads as the rows of one product."""
        H, d = q.shape[1], q.shape[3]
        q = ops.blocks(q, self.chunk)  # (B, H, N, C, d)
        if kv_heads == H:
            return q
        q = ops.reshape(q, (0, kv_heads, H // kv_heads, -1, self.chunk, d))
        return ops.reshape(ops.transpose(q, (0, 1, 3, 2, 4, 5)), (0, kv_heads, -1, H // kv_heads * self.chunk, d))

    def outputs(self, y: T, heads: int, ops: Ops[T]) -> T:
        """Inverse of `queries`: y (B, G, N, R·C, d) -> (B, H, T, d)."""
        G, d = y.shape[1], y.shape[4]
        if heads != G:
            y = ops.reshape(y, (0, G, -1, heads // G, self.chunk, d))
            y = ops.reshape(ops.transpose(y, (0, 1, 3, 2, 4, 5)), (0, heads, -1, self.chunk, d))
        return ops.unblock(y)

    def rotated(self, rows: T, keys: T, rope: int, per_group: int, step: Step[T]) -> tuple[T, T]:
        """Rows as `queries` gives them and keys as `keys` does, rotated by their places among a chunk's L keys."""
        ops, reach = step.ops, self.before * self.chunk
        own = step.rotation_between(rope, reach, reach + self.chunk)
        each_head = type(own)(*(ops.concat([part] * per_group, axis=0) for part in own))
        return apply_rope(rows, each_head, ops), apply_rope(keys, step.rotation_between(rope, 0, self.length), ops)

    def distance(self) -> np.ndarray[Any, Any]:
        """How far behind each query (C) its columns (L) are."""
        place = np.arange(self.length)
        return place[self.before * self.chunk :, None] - place

    def bias(self, step: Step[T], first: int, per_group: int) -> T:
        """What scores are changed by, (B, 1, N, R·C, L): `MASKED` outside the window and before the token `first`."""

        def compute() -> T:
            ops, distance = step.ops, self.distance()
            outside = np.where((distance < 0) | (distance >= self.window), MASKED, 0.0)
            static = ops.constant(
                np.tile(outside, (per_group, 1)), "float32", f"band_{self.window}x{self.chunk}x{per_group}"
            )
            ages = ops.constant(
                np.arange(-self.window, 0.0)[:, None], "float32", f"before_{self.window}"
            )  # of the buffer's entries
            start = ops.reshape(ops.cast(step.start, "float32"), (-1, 1, 1, 1))
            numbers = self.keys(ops.add(start, ages), step.numbers, ops)  # (B, 1, N, L, 1)
            early = ops.mul(empty_slot_mask(float(first), transposed(numbers, ops), ops), MASKED)
            return ops.add(static, early)

        key = ("band", self.window, first, per_group)
        result: T = step.shared(key, compute)
        return result


@dataclass(frozen=True)
class SlidingWindow:
    """Softmax over the last W tokens and the first s, the sinks, as window and hybrid layers have it.

    The state is a buffer of the last W keys and values, and the s sinks beside it. Where `rope` is given, keys are kept
    as they are and rotated by their place in the buffer: no angle grows without end. The query's place is then the
    last, min(t, W + s - 1): tokens in the window are at their true distance from it, and a sink at its true distance or
    at W + s - 1 less its own number, whichever is smaller (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453). A bias of
    scores sees the same distances.
    """

    sizes: HeadSizes
    window: int
    sinks: int
    rope: int | None

    @property
    def per_group(self) -> int:
        return self.sizes.heads // self.sizes.kv_heads

    @property
    def last(self) -> int:
        """The query's place for the sinks once the buffer is full."""
        return self.window + self.sinks - 1

    def state_spec(self) -> list[StateSpec]:
        G, d = self.sizes.kv_heads, self.sizes.size
        sizes = {"k": self.window, "v": self.window}
        if self.sinks:
            sizes |= {"sink_k": self.sinks, "sink_v": self.sinks}
        return [StateSpec(name, "float32", (BATCH, G, size, d)) for name, size in sizes.items()]

    def append(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[dict[str, T], State[T]]:
        """What leaves the window, k and v (B, G, T, ·), and the buffers after these tokens."""
        ops, after, evicted = step.ops, {}, {}
        for name, new in (("k", heads.k), ("v", heads.v)):
            if ops.many:
                joined = ops.concat([state[name], new], axis=2)  # (B, G, W + T, d)
                evicted[name], after[name] = ops.drop_last(joined, self.window), ops.kept_buffer(joined, self.window)
            else:
                evicted[name], after[name] = append(state[name], new, ops)
        return evicted, {**after, **self._sinks_after(heads, state, step, of_states=True)}

    def _sinks_after(self, heads: Heads[T], state: State[T], step: Step[T], of_states: bool) -> State[T]:
        """The sinks after these tokens: those that states keep, or all, which this run's own queries see."""
        if not self.sinks:
            return {}
        ops = step.ops
        here, free = self._sink_slots(step, of_states and not ops.keeps_all)
        pairs = (("sink_k", heads.k), ("sink_v", heads.v))
        return {name: ops.add(ops.mul(state[name], free), ops.matmul(here, new)) for name, new in pairs}

    def _sink_slots(self, step: Step[T], of_kept: bool) -> tuple[T, T]:
        """(B, 1, s, T), 1 where a sink's slot is a token's own, and (B, 1, s, 1), 1 where it is no token's."""

        def compute() -> tuple[T, T]:
            ops = step.ops
            distance = ops.sub(self._slot_numbers(ops), transposed(step.numbers, ops))
            here = ops.relu(ops.sub(1.0, ops.mul(distance, distance)))
            here = ops.of_kept(here) if of_kept else here
            return here, ops.sub(1.0, ops.reduce_max(here))

        found: tuple[T, T] = step.shared(("sink slots", self.sinks, of_kept), compute)
        return found

    def _slot_numbers(self, ops: Ops[T]) -> T:
        """The sinks' numbers (s, 1)."""
        return ops.constant(np.arange(float(self.sinks))[:, None], "float32", f"slots_{self.sinks}")

    def scores(self, heads: Heads[T], state: State[T], after: State[T], step: Step[T]) -> tuple[list[T], list[T]]:
        """Masked scores of the sinks and of the window, side by side in one tensor of the list, and their values.

        Rows are (B, G, R) in a step and (B, G, N, R·C) in a sequence; `outputs` brings them back.
        """
        ops, G = step.ops, self.sizes.kv_heads
        q = ops.mul(heads.q, self.sizes.scale)
        if ops.many:
            band = Band(self.window)
            rows = band.queries(q, G, ops)
            keys, values = (band.keys(state[name], new, ops) for name, new in (("k", heads.k), ("v", heads.v)))
            if self.rope is not None:
                rows, keys = band.rotated(rows, keys, self.rope, self.per_group, step)
        else:
            keys, values, here = after["k"], after["v"], q
            if self.rope is not None:
                here, keys = rotated_buffer(q, keys, self.rope, step)
            rows = ops.group_queries(here, G)
        scores, parts = self._biased(ops.matmul(rows, transposed(keys, ops)), self._near_bias, step), [values]
        if self.sinks:
            seen = after if ops.keeps_all else self._sinks_after(heads, state, step, of_states=False)
            of_sinks = self._biased(self._sink_scores(q, seen["sink_k"], step), self._sink_bias, step)
            scores = ops.concat([of_sinks, scores])
            parts.insert(0, ops.unsqueeze(seen["sink_v"], 2) if ops.many else seen["sink_v"])
        return [ops.add(scores, self._bias(step))], parts

    def _biased(self, scores: T, bias: Callable[[Positions, Step[T]], T], step: Step[T]) -> T:
        """Scores with their cap and with what positions add to them."""
        scores, positions = step.ops.soft_cap(scores, self.sizes.softcap), self.sizes.bias
        if positions is None:
            return scores
        key = bias.__name__, self.window, self.sinks, positions.key, self.sizes.kv_heads
        found: T = step.shared(key, lambda: bias(positions, step))
        return step.ops.add(scores, found)

    def _near_bias(self, positions: Positions, step: Step[T]) -> T:
        """What positions add to scores of the window, (G, R, W) or (G, 1, R·C, L)."""
        W, G, band = self.window, self.sizes.kv_heads, Band(self.window)
        distance = band.distance() if step.ops.many else np.arange(W - 1, -1, -1)[None]
        known = positions.known_bias(distance).reshape(G, -1, distance.shape[1])
        known = known[:, None] if step.ops.many else known
        return step.ops.constant(known, "float32", f"{positions.name}_of_{G}x{'x'.join(map(str, distance.shape))}")

    def _sink_bias(self, positions: Positions, step: Step[T]) -> T:
        """What positions add to scores of the sinks, (B, G, R, s) or (B, G, N, R·C, s)."""
        ops = step.ops
        place = ops.minimum(step.numbers, float(self.last))
        distance = ops.sub(place, ops.squeeze(self._slot_numbers(ops), 1))  # (B, 1, T, s)
        return self.rows(positions.score_bias(distance, ops), step)

    def _sink_scores(self, q: T, sinks: T, step: Step[T]) -> T:
        ops, G = step.ops, self.sizes.kv_heads
        if self.rope is not None:
            q = apply_rope(q, step.rotation(self.rope, self.last), ops)
            sinks = apply_rope(sinks, step.rotation_between(self.rope, 0, self.sinks), ops)
        if not ops.many:
            return ops.matmul(ops.group_queries(q, G), transposed(sinks, ops))
        return ops.matmul(Band(self.window).queries(q, G, ops), ops.unsqueeze(transposed(sinks, ops), 2))

    def _bias(self, step: Step[T]) -> T:
        """What these scores are changed by: `MASKED` for slots that hold nothing yet, and what a query must not see."""

        def compute() -> T:
            ops, W, s = step.ops, self.window, self.sinks
            if not ops.many:  # a slot of the window is seen once as many tokens came before, those of the sinks too
                valid_from = np.concatenate([np.arange(float(s)), np.arange(W - 1.0, -1.0, -1.0) + s])
                slots = ops.constant(valid_from, "float32", f"valid_from_{s}_{W}")
                return ops.mul(empty_slot_mask(slots, step.numbers, ops), MASKED)
            band = Band(W)
            bias = band.bias(step, s, self.per_group)
            if not s:
                return bias
            yet = empty_slot_mask(ops.squeeze(self._slot_numbers(ops), 1), step.numbers, ops)  # (B, 1, T, s)
            yet = ops.mul(band.queries(yet, 1, ops), MASKED)  # (B, 1, N, C, s)
            return ops.concat([ops.concat([yet] * self.per_group, axis=3), bias])

        result: T = step.shared(("window bias", self.window, self.sinks, self.per_group), compute)
        return result

    def rows(self, q: T, step: Step[T]) -> T:
        """Queries (B, H, T, d) as the rows that `scores` has."""
        G = self.sizes.kv_heads
        return Band(self.window).queries(q, G, step.ops) if step.ops.many else step.ops.group_queries(q, G)

    def outputs(self, y: T, step: Step[T]) -> T:
        """Rows as `scores` has them -> (B, H, T, ·)."""
        H = self.sizes.heads
        return Band(self.window).outputs(y, H, step.ops) if step.ops.many else step.ops.ungroup_queries(y, H)


def weighted(scores: Sequence[T], values: Sequence[T], ops: Ops[T]) -> tuple[T, T]:
    """One softmax over scores that lie side by side, and what the values (…, n_i, d) give with its weights: output and
    weights."""
    weights = ops.softmax(ops.concat(scores))
    shares = ops.split(weights, [part.shape[-2] for part in values])
    y = ops.matmul(shares[0], values[0])
    for share, part in zip(shares[1:], values[1:], strict=True):
        y = ops.add(y, ops.matmul(share, part))
    return y, weights
