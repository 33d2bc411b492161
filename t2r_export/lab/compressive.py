"""Softmax attention to a window and to a compressed memory of earlier tokens, in states of fixed size (Compressive
Transformer, Rae et al. 2019, arXiv 1911.05507, section 3).

The text is cut into blocks of c tokens. When W tokens follow a block, it leaves the window as a whole and becomes one
key and one value; the last M of these are kept. So a query at position p sees

    the last W to W + c - 1 tokens, from c·n on, and the blocks n - M to n - 1,    n = ⌊(p + 1 - W) / c⌋.

Positions in scores count a compressed block as one token, as in the paper: block n - 1 - i stands i behind the oldest
token. Keys and values are compressed; the paper compresses hidden states, which is equivalent for a mean.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from t2r_export.lab.config.compressive import CompressiveConfig
from t2r_export.model.mixers.banded import empty_slot_mask, products, transposed, weigh, weighted
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.mixers.sliding_window import SlidingWindow
from t2r_export.model.mixers.softmax import merge_softmax
from t2r_export.model.ops import MASKED, Ops, State, T
from t2r_export.model.positions.pairs import Pairs
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class CompressiveMixer(AttentionMixer):
    """A window of W to W + c - 1 tokens, and M compressed blocks of c tokens."""

    needs_position = True
    config: CompressiveConfig

    def __init__(self, sizes: HeadSizes, config: CompressiveConfig) -> None:
        super().__init__(sizes, config)
        self.length = config.window + config.rate - 1  # of the window's buffer
        self.ahead = -(-config.window // config.rate)  # offset that makes block counts nonnegative
        self.near = SlidingWindow(sizes, self.length, 0, None)
        if config.compression == "conv":  # initialized as a mean
            kernel = torch.eye(sizes.size).repeat(config.rate, 1) / config.rate
            self.kernel_k, self.kernel_v = (nn.Parameter(kernel.clone()) for _ in range(2))

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        heads, evicted, after = self.near.append(heads, state, step)
        blocks = {name: self._blocks(name, evicted[name], state, after, heads, step) for name in ("k", "v")}
        seen = {name: self._seen(state[f"block_{name}"], blocks[name], step) for name in ("k", "v")}
        kept = {f"block_{name}": self._kept(part, step) for name, part in seen.items()}
        tokens, far = self._attend_tokens(heads, state, after, step), self._attend_blocks(heads, seen, step)
        return merge_softmax(tokens, far, ops), {**after, **kept}

    # -- phases: which blocks exist

    def _count(self, position: T, ops: Ops[T]) -> tuple[T, T]:
        """c·(n + `ahead`) at integer positions, and (p + 1 - W) mod c."""
        c = self.config.rate
        shifted = ops.add(position, 1 - self.config.window + c * self.ahead)
        rest = ops.remainder(shifted, c)
        return ops.sub(shifted, rest), rest

    def _phase(self, step: Step[T]) -> tuple[T, T, T]:
        """Per token: (p + 1 - W) mod c, and the number of blocks completed so far in this call, each (B, 1, T, 1); and
        n before the call, (B, 1, 1, 1). Float32."""

        def compute() -> tuple[T, T, T]:
            ops, c = step.ops, float(self.config.rate)
            whole, rest = self._count(step.position, ops)
            before, _ = self._count(ops.sub(step.start, 1), ops)
            new = ops.div(ops.cast(ops.sub(whole, ops.unsqueeze(before, 1)), "float32"), c)
            first = ops.sub(ops.div(ops.cast(before, "float32"), c), float(self.ahead))
            rest, new = (ops.reshape(x, (0, 1, -1, 1)) for x in (ops.cast(rest, "float32"), new))
            return rest, new, ops.reshape(first, (-1, 1, 1, 1))

        return step.shared(("phase", self.config.window, self.config.rate), compute)

    # -- the memory

    def _compress(self, name: str, block: T, ops: Ops[T]) -> T:
        """Keys or values (…, c, d) -> (…, 1, d)."""
        c, kind = self.config.rate, self.config.compression
        if kind == "max":
            return transposed(ops.reduce_max(transposed(block, ops)), ops)
        if kind == "conv":
            flat = ops.reshape(block, (*[0] * (len(block.shape) - 2), 1, c * self.sizes.size))
            return ops.matmul(flat, ops.parameter(self.kernel_k if name == "k" else self.kernel_v))
        shares = np.full((1, c), 1.0 / c) if kind == "mean" else np.eye(c)[-1:]
        return ops.matmul(ops.constant(shares, "float32", f"shares_{kind}_{c}"), block)

    def _blocks(self, name: str, evicted: T, state: State[T], after: State[T], heads: Heads[T], step: Step[T]) -> T:
        """Compressed blocks of these tokens: (B, G, 1, d) in a step, or (B, G, N, d), one per chunk of c tokens, in
        which one block is completed."""
        ops, c = step.ops, self.config.rate
        if not ops.many:
            rest = ops.split(after[name], [c - 1, self.config.window], axis=2)[0]
            return self._compress(name, ops.concat([evicted, rest], axis=2), ops)
        joined = ops.concat([state[name], heads.k if name == "k" else heads.v], axis=2)
        chunks = ops.blocks(ops.drop_last(ops.slice_from(joined, c - 1), self.config.window), c)  # (B, G, N, c, d)
        first = ops.pad_front(ops.split(state[name], [c - 1, self.config.window], axis=2)[0], 1)
        before = ops.concat([ops.unsqueeze(first, 2), ops.drop_last(chunks, 1)], axis=2)
        pairs = ops.concat([before, chunks], axis=3)  # a block ends in the second half of each
        return ops.squeeze(self._compress(name, ops.matmul(self._aligned(step), pairs), ops), 3)

    def _aligned(self, step: Step[T]) -> T:
        """One-hot (B, 1, 1, c, 2c) that selects a block's tokens from two chunks."""

        def compute() -> T:
            ops, c = step.ops, self.config.rate
            _, rest = self._count(step.start, ops)  # (B,): the first block is complete after c - rest tokens
            late = ops.reshape(ops.cast(ops.remainder(ops.sub(c, rest), c), "float32"), (-1, 1, 1, 1, 1))
            places = np.arange(2 * c) - np.arange(c)[:, None] - 1
            return self._one_hot(ops.constant(places, "float32", f"block_places_{c}"), late, ops)

        return step.shared(("aligned", self.config.window, self.config.rate), compute)

    def _one_hot(self, place: T, wanted: T, ops: Ops[T]) -> T:
        """1 where integers are equal, else 0; float32, broadcast."""
        missing = ops.sub(place, wanted)
        return ops.relu(ops.sub(1.0, ops.mul(missing, missing)))

    def _seen(self, memory: T, blocks: T, step: Step[T]) -> T:
        """Blocks visible to these tokens, oldest first: (B, G, M, d) in a step, (B, G, M + N, d) for many tokens."""
        ops = step.ops
        both = ops.concat([memory, blocks], axis=2)
        if ops.many:
            return both
        rest, _, _ = self._phase(step)
        whole = ops.relu(ops.sub(1.0, rest))  # 1 if a block was completed
        return ops.add(ops.mul(ops.slice_from(both, 1), whole), ops.mul(memory, ops.sub(1.0, whole)))

    def _kept(self, seen: T, step: Step[T]) -> T:
        """The memory after these tokens."""
        ops, M = step.ops, self.config.blocks
        if not ops.many:
            return seen

        def compute() -> T:
            before, _ = self._count(ops.sub(step.start, 1), ops)
            after, _ = self._count(ops.sub(step.after, 1), ops)
            new = ops.div(ops.cast(ops.sub(after, before), "float32"), float(self.config.rate))
            first = ops.add(
                ops.reshape(new, (-1, 1, 1, 1)), ops.constant(np.arange(M)[:, None], "float32", f"kept_{M}")
            )
            return self._one_hot(self._order(seen, step), first, ops)

        chosen = step.shared(("kept blocks", self.config.window, self.config.rate, M), compute)  # (B, 1, M, M + N)
        return ops.matmul(chosen, seen)

    def _order(self, seen: T, step: Step[T]) -> T:
        """Indices 0, 1, … of the blocks of `_seen`, float32."""
        ops, M = step.ops, self.config.blocks
        if not ops.many:
            return ops.constant(np.arange(M), "float32", f"blocks_{M}")

        def compute() -> T:
            return ops.cast(ops.cache_places(seen, seen)[1], "float32")

        return step.shared(("order of blocks", self.config.rate, M), compute)

    # -- attention

    def _attend_tokens(self, heads: Heads[T], state: State[T], after: State[T], step: Step[T]) -> tuple[T, T, T]:
        """Output (B, H, T, d), largest score and largest weight (B, H, T, 1) of attention to the window only."""
        ops = step.ops
        (scores,), values = self.near.scores(heads, state, after, step)
        scores = ops.add(scores, self._gone(step))
        y, weights = weighted([scores], values, ops)
        parts = (y, ops.reduce_max(scores), ops.reduce_max(weights))
        o, top, largest = (self.near.outputs(part, step) for part in parts)
        return o, top, largest

    def _gone(self, step: Step[T]) -> T:
        """Bias that masks buffered tokens already in a block, in the rows of `SlidingWindow.scores`."""

        def compute() -> T:
            ops, band = step.ops, self.near.band
            rest, _, _ = self._phase(step)
            oldest = ops.add(rest, self.config.window - 1.0)
            distance = band.distance() if ops.many else np.arange(self.length - 1, -1, -1)
            ages = ops.constant(distance, "float32", f"ages_{'x'.join(map(str, distance.shape))}")
            if not ops.many:
                return ops.mul(empty_slot_mask(ages, oldest, ops), MASKED)
            hidden = empty_slot_mask(ages, band.queries(oldest, 1, ops), ops)  # (B, 1, N, C, L)
            return ops.mul(ops.concat([hidden] * self.near.per_group, axis=3), MASKED)

        return step.shared(("gone", self.config.window, self.config.rate, self.near.per_group), compute)

    def _attend_blocks(self, heads: Heads[T], seen: State[T], step: Step[T]) -> tuple[T, T, T]:
        """As `_attend_tokens`, of attention to the memory only."""
        ops, sizes = step.ops, self.sizes
        H, G, q = sizes.heads, sizes.kv_heads, heads.q
        rows = ops.group_queries(
            ops.mul(q if self.positions is None else self.positions.queries(q, ops), sizes.scale), G
        )
        scores = products(rows, seen["k"], ops, sizes.softcap)
        if self.positions is not None:
            scores = self.positions.scores(scores, q, self._pairs(seen["k"], step), ops)
        scores = ops.add(scores, self._absent(seen["k"], step))
        y, scores, weights = weigh(scores, seen["v"], ops)
        parts = (y, ops.reduce_max(scores), ops.reduce_max(weights))
        o, top, largest = (ops.ungroup_queries(part, H) for part in parts)
        return o, top, largest

    def _pairs(self, seen: T, step: Step[T]) -> Pairs[T]:
        """Queries and blocks; each block counts as one token."""
        ops, config, G = step.ops, self.config, self.sizes.kv_heads
        name = f"blocks_{config.window}_{config.rate}_{config.blocks}"

        def distance() -> T:
            rest, new, _ = self._phase(step)
            newest = ops.add(new, rest) if ops.many else rest
            return ops.sub(ops.add(newest, config.window + config.blocks - 1.0), self._order(seen, step))

        def rows(x: T) -> T:
            return ops.group_queries(x, G)

        last = self.length + config.blocks - 1
        return Pairs(step, self.sizes.heads // G, G, step.shared(name, distance), rows, False, last, name)

    def _absent(self, seen: T, step: Step[T]) -> T:
        """Bias that masks blocks invisible to a token: (B, 1, R·T, M + N), or (B, 1, 1, M) in a step."""

        def compute() -> T:
            ops, M, order = step.ops, self.config.blocks, self._order(seen, step)
            _, new, first = self._phase(step)
            if not ops.many:
                return ops.mul(empty_slot_mask(ops.sub(float(M), ops.add(first, new)), order, ops), MASKED)
            hidden = ops.add(empty_slot_mask(new, order, ops), empty_slot_mask(order, ops.add(new, M - 1.0), ops))
            hidden = ops.add(hidden, empty_slot_mask(ops.sub(float(M), first), order, ops))
            return ops.mul(ops.concat([hidden] * self.near.per_group, axis=2), MASKED)

        config = self.config
        key = ("absent blocks", config.window, config.rate, config.blocks, self.near.per_group)
        return step.shared(key, compute)

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.sizes.kv_heads, self.config.blocks, self.sizes.size)
        return [*self.near.state_spec(), *(StateSpec(f"block_{name}", "float32", shape) for name in ("k", "v"))]

    def memory_length(self) -> int:
        return self.length + self.config.rate * self.config.blocks
