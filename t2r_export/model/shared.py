"""Layers that share the attention weights of the layer below (SAN, Xiao et al. 2019, arXiv 1906.11024).

    o_t = Σ_s w_ts v_s    with the w of the layer below, and v of this layer

So there is neither a query nor a key, nor a cache of keys, and no score is computed twice. What is over the prefix and
what is over a source are two layers, which share with those of their own kind. The layer below lends its weights to
the step, from which this one takes them: `Step.lend` and `Step.borrowed`.
"""

from __future__ import annotations

from torch import nn

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers import MixerConfig
from t2r_export.model.mixers.base import Mixer
from t2r_export.model.mixers.softmax import PREFIX_WEIGHTS
from t2r_export.model.mixers.source import SOURCE_WEIGHTS
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.step import Step
from t2r_runtime.signature import BATCH, GROWING, SOURCE_LENGTH, StateSpec


class SharedLayer(Mixer):
    """Values and the output around weights that are another layer's."""

    def __init__(self, width: int, config: MixerConfig, attention: AttentionConfig) -> None:
        super().__init__(width, config)
        self.attention = attention
        H, G, d = attention.heads, attention.kv_heads, attention.head_size
        self.v = nn.Linear(width, G * d, bias=attention.qkv_bias)
        self.o = nn.Linear(H * d, width, bias=attention.output_bias)

    def _values(self, x: T, ops: Ops[T]) -> T:
        """Rows x (N, D) -> v (B, G, T, V)."""
        return ops.split_heads(ops.linear(x, self.v.weight, self.v.bias), self.attention.kv_heads)

    def _output(self, weights: T, v: T, ops: Ops[T]) -> T:
        """Weights (B, G, R·T, n) and v (B, G, n, V) -> rows (N, D)."""
        o = ops.ungroup_queries(ops.matmul(weights, v), self.attention.heads)
        return ops.linear(ops.merge_heads(o), self.o.weight, self.o.bias)


class SharedAttention(SharedLayer):
    """Attention to the prefix."""

    def sequence(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        v = step.ops.concat([state["v"], self._values(x, step.ops)], axis=2)
        return self._output(step.borrowed(PREFIX_WEIGHTS), v, step.ops), {"v": step.ops.kept_cache(v)}

    step = sequence  # the operators know how many tokens there are

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec("v", "float32", (BATCH, self.attention.kv_heads, GROWING, self.attention.head_size))]


class SharedCross(SharedLayer):
    """Attention to a source."""

    needs_lengths = False  # the layer below has hidden what is behind a source

    def read(self, x: T, source: Step[T]) -> State[T]:
        """The encoder's rows x (B·M, D), and what is known of the source -> the layer's states."""
        return {"source_v": self._values(x, source.ops)}

    def sequence(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        return self._output(step.borrowed(SOURCE_WEIGHTS), state["source_v"], step.ops), {}

    step = sequence

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.attention.kv_heads, SOURCE_LENGTH, self.attention.head_size)
        return [StateSpec("source_v", "float32", shape, constant=True)]
