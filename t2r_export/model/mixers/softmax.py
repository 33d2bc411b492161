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
from t2r_export.model.mixers.banded import attend
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.mixers.memory import Memory
from t2r_export.model.mixers.sink import with_sink
from t2r_export.model.mixers.source import source_bias
from t2r_export.model.ops import MASKED, Ops, State, T
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import BATCH, GROWING, StateSpec

PREFIX_WEIGHTS = "weights of the prefix"  # name for Step.lend


class SoftmaxMixer(AttentionMixer):
    """Causal multi-head attention with grouped key/value heads."""

    def __init__(self, sizes: HeadSizes, config: SoftmaxConfig) -> None:
        super().__init__(sizes, config)
        d, N = sizes.size, config.memory
        self.memory = Memory(sizes.kv_heads, N, d, d, 0, False) if N else None
        self.sink = nn.Parameter(torch.zeros(sizes.heads)) if sizes.sink else None

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        k, v = (ops.concat([state[name], new], axis=2) for name, new in (("k", heads.k), ("v", heads.v)))
        if self.memory is not None:
            own = (heads.plain_q, ops.parameter(self.memory.k), ops.parameter(self.memory.v), None)
            o = self._beside(heads, state["k"], k, v, own, step)
        elif "source_k" in state:  # of a merged layer
            source = (heads.q, state["source_k"], state["source_v"], source_bias(state["source_k"], step))
            o = self._beside(heads, state["k"], k, v, source, step)
        elif self.sizes.lends or self.sizes.bias is not None or self.sink is not None:
            q = ops.group_queries(ops.mul(heads.q, self.sizes.scale), self.sizes.kv_heads)
            o, scores, weights = attend(q, k, v, ops, self._bias(heads, state["k"], k, step), self.sizes.softcap)
            step.lend(PREFIX_WEIGHTS, weights)
            o = with_sink(o, scores, weights, self.sink, lambda x: ops.ungroup_queries(x, self.sizes.heads), ops)
        else:
            o = ops.causal_attention(heads.q, k, v, self.sizes.scale, self.sizes.softcap)
        return o, {"k": ops.kept_cache(k), "v": ops.kept_cache(v)}

    def _beside(self, heads: Heads[T], past: T, k: T, v: T, other: tuple[T, T, T, T | None], step: Step[T]) -> T:
        """Attention with one softmax over the tokens and further keys.

        Args:
            other: queries, keys, values and score bias of the further keys.
        """
        ops, sizes = step.ops, self.sizes
        # scale q instead of the scores: d elements per head instead of P + T
        q, theirs = (ops.group_queries(ops.mul(x, sizes.scale), sizes.kv_heads) for x in (heads.q, other[0]))
        tokens = attend(q, k, v, ops, self._bias(heads, past, k, step), sizes.softcap)
        others = attend(theirs, other[1], other[2], ops, other[3], sizes.softcap)
        return ops.ungroup_queries(merge_softmax(tokens, others, ops), sizes.heads)

    def _bias(self, heads: Heads[T], past: T, k: T, step: Step[T]) -> T | None:
        """Causal mask and position bias of the scores, (R·T, P + T) or (G, R·T, P + T); shared by all layers."""
        ops, per_group = step.ops, self.sizes.heads // self.sizes.kv_heads

        def mask() -> T:
            hidden = ops.mul(ops.causal_mask(past, heads.k), MASKED)
            return ops.concat([hidden] * per_group, axis=0)

        hidden: T | None = step.shared(("causal mask", per_group), mask) if ops.many else None
        positions, G = self.sizes.bias, self.sizes.kv_heads
        if positions is None:
            return hidden

        def bias() -> T:
            of_heads = positions.score_bias(ops.causal_distance(k, heads.k), ops)  # (H, T, P + T)
            grouped = ops.reshape(of_heads, (G, -1, 0))
            return grouped if hidden is None else ops.add(grouped, hidden)

        return step.shared(("score bias", positions.key, G), bias)

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.sizes.kv_heads, GROWING, self.sizes.size)
        return [StateSpec("k", "float32", shape), StateSpec("v", "float32", shape)]


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
