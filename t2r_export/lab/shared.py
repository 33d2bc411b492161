"""Attention weights of the layer below (SAN, Xiao et al. 2019, arXiv 1906.11024).

    o_t = Σ_s w_ts v_s    with the w of the layer below, and v of this layer

The layer has no queries, keys or key cache. Self-attention borrows from self-attention and cross-attention from
cross-attention, through `Step.lend` and `Step.borrowed`.
"""

from __future__ import annotations

from t2r_export.model.mixers.base import AttentionMixer, Heads
from t2r_export.model.mixers.cross import CrossMixer
from t2r_export.model.mixers.softmax import PREFIX_WEIGHTS
from t2r_export.model.mixers.source import SOURCE_WEIGHTS
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, GROWING, SOURCE_LENGTH, StateSpec


class SharedMixer(AttentionMixer):
    """Self-attention."""

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        v = ops.concat([state["v"], heads.v], axis=2)
        o = ops.ungroup_queries(ops.matmul(step.borrowed(PREFIX_WEIGHTS), v), self.sizes.heads)
        return o, {"v": ops.kept_cache(v)}

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec("v", "float32", (BATCH, self.sizes.kv_heads, GROWING, self.sizes.size))]


class SharedCross(CrossMixer):
    """Cross-attention. The borrowed weights are already masked."""

    def read(self, k: T, v: T, source: Step[T]) -> State[T]:
        return {"source_v": v}

    def forward(self, q: T, state: State[T], step: Step[T]) -> T:
        ops = step.ops
        return ops.ungroup_queries(ops.matmul(step.borrowed(SOURCE_WEIGHTS), state["source_v"]), self.sizes.heads)

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.sizes.kv_heads, SOURCE_LENGTH, self.sizes.size)
        return [StateSpec("source_v", "float32", shape, constant=True)]
