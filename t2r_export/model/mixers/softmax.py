"""Causal softmax attention with a key/value cache.

o_t = Σ_{s≤t} softmax_s(q_t·k_s / √d) v_s (Vaswani et al. 2017, eq. 1). The states are the rotated keys and the values
of all tokens so far.

A persistent memory (Sukhbaatar et al. 2019, arXiv 1907.01470, eq. 9) adds N trained keys and values without positions,
to which queries are not rotated.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.model.mixers.banded import attend, products, weigh
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.mixers.memory import Memory
from t2r_export.model.mixers.rows import Rows
from t2r_export.model.mixers.sink import with_sink
from t2r_export.model.mixers.source import source_bias
from t2r_export.model.ops import MASKED, Ops, State, T
from t2r_export.model.positions.pairs import Pairs
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import GROWING, StateSpec

PREFIX_WEIGHTS = "weights of the prefix"  # name for Step.lend


class SoftmaxMixer(AttentionMixer):
    """Causal multi-head attention with grouped key/value heads."""

    def __init__(self, sizes: HeadSizes, config: SoftmaxConfig) -> None:
        super().__init__(sizes, config)
        d, N = sizes.size, config.memory
        self.memory = Memory(sizes.kv_heads, N, d, d, 0, False) if N else None
        self.rows = Rows(config.cache_bits)
        self.sink = nn.Parameter(torch.zeros(sizes.heads)) if sizes.sink else None

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, rows = step.ops, self.rows
        new = [(name, state, *rows.stored(name, x, ops), ops) for name, x in (("k", heads.k), ("v", heads.v))]
        (of_k, k), (of_v, v) = (rows.joined(*each) for each in new)
        if self.memory is not None:
            own = (heads.plain_q, ops.parameter(self.memory.k), ops.parameter(self.memory.v), None)
            o = self._beside(self._attend(heads, state["k"], k, v, step), own, step)
        elif "source_k" in state:  # of a merged layer
            source = (heads.q, state["source_k"], state["source_v"], source_bias(state["source_k"], step))
            o = self._beside(self._attend(heads, state["k"], k, v, step), source, step)
        elif self.sizes.lends or self.positions is not None or self.sink is not None:
            o, scores, weights = self._attend(heads, state["k"], k, v, step)
            step.lend(PREFIX_WEIGHTS, weights)
            o = with_sink(o, scores, weights, self.sink, lambda x: ops.ungroup_queries(x, self.sizes.heads), ops)
        else:
            o = ops.causal_attention(heads.q, k, v, self.sizes.scale, self.sizes.softcap)
        return o, {name: ops.kept_cache(part) for name, part in (of_k | of_v).items()}

    def _rows(self, q: T, ops: Ops[T]) -> T:
        """Scaled queries (B, G, R·T, d): d products per head instead of P + T of its scores."""
        return ops.group_queries(ops.mul(q, self.sizes.scale), self.sizes.kv_heads)

    def _attend(self, heads: Heads[T], past: T, k: T, v: T, step: Step[T]) -> tuple[T, T, T]:
        """Attention to the tokens; returns as `banded.attend`."""
        ops, softcap, mask = step.ops, self.sizes.softcap, self._mask(heads, past, step)
        if self.positions is None:
            return attend(self._rows(heads.q, ops), k, v, ops, mask, softcap)
        scores = products(self._rows(self.positions.queries(heads.q, ops), ops), k, ops, softcap)
        return weigh(self.positions.scores(scores, heads.q, self._pairs(heads, k, mask, step), ops), v, ops)

    def _beside(self, tokens: tuple[T, T, T], other: tuple[T, T, T, T | None], step: Step[T]) -> T:
        """Attention with one softmax over the tokens and further keys.

        Args:
            tokens: results of `_attend`.
            other: queries, keys, values and score bias of the further keys.
        """
        others = attend(self._rows(other[0], step.ops), other[1], other[2], step.ops, other[3], self.sizes.softcap)
        return step.ops.ungroup_queries(merge_softmax(tokens, others, step.ops), self.sizes.heads)

    def _pairs(self, heads: Heads[T], k: T, mask: T | None, step: Step[T]) -> Pairs[T]:
        """New tokens as queries, tokens of the cache k (B, G, P + T, d) as keys."""
        ops, G = step.ops, self.sizes.kv_heads
        own, places = step.shared("cache places", lambda: ops.cache_places(k, heads.k))
        distance = step.shared("cache distance", lambda: ops.cast(ops.sub(own, places), "float32"))

        def rows(x: T) -> T:
            return ops.group_queries(x, G)

        return Pairs(step, self.sizes.heads // G, G, distance, rows, False, None, "cache", mask, places)

    def _mask(self, heads: Heads[T], past: T, step: Step[T]) -> T | None:
        """Causal mask of the scores, (R·T, P + T); shared by all layers."""
        ops, per_group = step.ops, self.sizes.heads // self.sizes.kv_heads

        def mask() -> T:
            hidden = ops.mul(ops.causal_mask(past, heads.k), MASKED)
            return ops.concat([hidden] * per_group, axis=0)

        return step.shared(("causal mask", per_group), mask) if ops.many else None

    def state_spec(self) -> list[StateSpec]:
        G, d = self.sizes.kv_heads, self.sizes.size
        return [spec for name in ("k", "v") for spec in self.rows.state_spec(name, G, GROWING, d)]


def merge_softmax(first: tuple[T, T, T], second: tuple[T, T, T], ops: Ops[T]) -> T:
    """Combine the results of `attend` for two sets of keys into one softmax.

    The share of a set is Σ exp(score) = exp(c) / w, with its largest score c and largest weight w; shares are relative
    to the larger c.
    """
    tops = [ops.reduce_max(scores) for _, scores, _ in (first, second)]
    top = ops.reduce_max(ops.concat(tops))
    shares = [
        ops.div(ops.exp(ops.sub(c, top)), ops.reduce_max(weights))
        for c, (_, _, weights) in zip(tops, (first, second), strict=True)
    ]
    sums = [ops.mul(y, share) for (y, _, _), share in zip((first, second), shares, strict=True)]
    return ops.div(ops.add(*sums), ops.add(*shares))
