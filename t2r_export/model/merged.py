"""The merged layer: one attention to prefix and source, with one query and one normalizer (CAN, Li et al. 2021, arXiv
2101.00542, section 3).

Of linear attention both are sums, and sums simply add:

    o_t = φ(q_t)ᵀ (S_source + S_t) / guard(φ(q_t)·(z_source + z_t))

So S_source and z_source are where S and z start, and nothing of the source is left in a step. A gate would forget them:
there they stay apart, constant states that are added when they are read. A softmax layer keeps the source's keys and
values, and one softmax is over them and the prefix's. Keys and values of the source have projections of their own,
unless the config shares the prefix's.

As published, a softmax layer takes the feed-forward in as well: its first matrix is part of the values, so that one
product gives what the attention weighs and what the activation sees, and the second matrix is the layer's output,

    y = W_down act(Σ_i a_i (W_v x_i + b))
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers import LinearConfig, MergedConfig, MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.attention import Attention, folded
from t2r_export.model.feed_forward import activate
from t2r_export.model.mixers.base import Heads
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.mixers.source import sum_source
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step
from t2r_runtime.signature import BATCH, SOURCE, SOURCE_LENGTH, StateSpec


class MergedAttention(Attention):
    """An attention layer that reads a source too."""

    def __init__(
        self,
        width: int,
        config: MixerConfig,
        attention: AttentionConfig,
        eps: float,
        merged: MergedConfig = MergedConfig(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__(width, config, attention, None, eps)
        self.merged = merged
        if not merged.shared or config.packed:  # a packed projection is of the prefix alone
            G, d = attention.kv_heads, attention.head_size
            arguments = self.inner.packed_sizes()[0] if config.packed else d
            self.source_k = nn.Linear(width, G * arguments, bias=attention.qkv_bias or config.packed)
            self.source_v = nn.Linear(width, G * d, bias=attention.qkv_bias)
        self.needs_lengths = not isinstance(config, LinearConfig)

    @property
    def of_source(self) -> tuple[nn.Linear, nn.Linear]:
        """What projects the source's keys and values."""
        own = not self.merged.shared or self.config.packed
        return (self.source_k, self.source_v) if own else (self.k, self.v)

    @property
    def starts(self) -> bool:
        """Whether the source is where the layer's states start, and not beside them."""
        return isinstance(self.config, LinearConfig) and self.config.update_rule == "linear"

    def read(self, x: T, source: Step[T]) -> State[T]:
        """The encoder's rows x (B·M, D), and what is known of the source -> constant states, or where S and z start."""
        ops, G = source.ops, self.sizes.kv_heads
        k, v = (ops.split_heads(ops.linear(x, p.weight, p.bias), G) for p in self.of_source)
        if not isinstance(self.inner, LinearMixer):
            return {"source_k": k, "source_v": v}
        S, z = sum_source(self.inner.maps.of_keys, k, v, source)
        states = {"S": S, "z": z} if self.inner.config.normalizer == "z" else {"S": S}
        return states if self.starts else {SOURCE + name: value for name, value in states.items()}

    def state_spec(self) -> list[StateSpec]:
        own = self.inner.state_spec()
        if self.starts:
            return own
        if isinstance(self.config, LinearConfig):
            return [*own, *(replace(s, name=SOURCE + s.name, constant=True) for s in own if s.name in ("S", "z"))]
        shape = (BATCH, self.sizes.kv_heads, SOURCE_LENGTH, self.sizes.size)
        return [*own, *(StateSpec(SOURCE + name, "float32", shape, constant=True) for name in ("k", "v"))]

    def _remade(self, config: MixerConfig) -> MergedAttention:
        return MergedAttention(self.width, config, self.attention, self.sizes.eps, self.merged)

    @torch.no_grad()
    def fold(self) -> MergedAttention:
        """As an attention layer's, and the same of the source's keys."""
        made, packing = super().fold(), self.inner.packing()
        assert isinstance(made, MergedAttention) and packing is not None
        of_keys, of_values = self.of_source
        weight, bias = folded(of_keys, packing.k, 1.0)
        made.source_k.weight.copy_(weight)
        made.source_k.bias.copy_(bias)
        made.source_v.load_state_dict(of_values.state_dict())
        return made


class MergedFeedForward(MergedAttention):
    """A softmax layer for prefix, source and feed-forward: a block's only part."""

    def __init__(
        self, model: ModelConfig, config: MixerConfig, attention: AttentionConfig, merged: MergedConfig
    ) -> None:
        super().__init__(model.width, config, attention, model.norm_eps, merged)
        self.activation, hidden, bias = model.activation, model.ffn_size, model.ffn_bias
        self.v = nn.Linear(model.width, hidden, bias=bias)
        if not merged.shared:
            self.source_v = nn.Linear(model.width, hidden, bias=bias)
        self.o = nn.Linear(hidden, model.width, bias=bias)

    def project(self, x: T, step: Step[T]) -> Heads[T]:
        ops, H = step.ops, self.sizes.heads
        q, k, v = (ops.split_heads(ops.linear(x, p.weight, p.bias), H) for p in (self.q, self.k, self.v))
        return Heads(q, k, v, q, x)

    def sequence(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        o, state = self.inner(self.project(x, step), state, step)
        hidden = activate(ops.merge_heads(o), self.activation, ops)
        return ops.linear(hidden, self.o.weight, self.o.bias), state

    step = sequence  # the inside knows how many tokens there are

    def state_spec(self) -> list[StateSpec]:
        size = self.o.in_features // self.sizes.heads  # of a value
        return [
            replace(s, shape=(*s.shape[:-1], size)) if s.name in ("v", SOURCE + "v") else s
            for s in super().state_spec()
        ]
