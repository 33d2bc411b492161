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

from t2r_export.config.mixers import LinearConfig
from t2r_export.config.parts import MergedConfig
from t2r_export.model.mixers.base import Heads
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.mixers.source import sum_source
from t2r_export.model.ops import State, T
from t2r_export.model.parts.attention import Attention, folded
from t2r_export.model.parts.base import Site
from t2r_export.model.parts.dense import activate
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import BATCH, SOURCE, SOURCE_LENGTH, StateSpec


class Merged(Attention):
    """Attention that reads a source too; with a feed-forward inside it is a layer's only part."""

    config: MergedConfig

    def __init__(self, site: Site, config: MergedConfig) -> None:
        super().__init__(site, config)
        packed, width = config.inside.packed, site.width
        self.of_values = config.hidden or config.kv_heads * config.head_size  # numbers of all values
        self.own = not config.shared or packed  # a packed projection is of the prefix alone
        if self.own:
            arguments = self.inner.packed_sizes()[0] if packed else config.head_size
            self.source_k = nn.Linear(width, config.kv_heads * arguments, bias=config.qkv_bias or packed)
            self.source_v = nn.Linear(width, config.kv_heads * config.head_size, bias=config.qkv_bias)
        if config.hidden:
            self.v = nn.Linear(width, config.hidden, bias=config.hidden_bias)
            if self.own:
                self.source_v = nn.Linear(width, config.hidden, bias=config.hidden_bias)
            self.o = nn.Linear(config.hidden, width, bias=config.hidden_bias)
        linear = config.inside if isinstance(config.inside, LinearConfig) else None
        self.needs_lengths = linear is None
        # whether the source is where the part's states start, and not beside them
        self.starts = linear is not None and linear.update_rule == "linear"

    @property
    def of_source(self) -> tuple[nn.Linear, nn.Linear]:
        """What projects the source's keys and values."""
        return (self.source_k, self.source_v) if self.own else (self.k, self.v)

    def read(self, x: T, source: Step[T]) -> State[T]:
        ops, G = source.ops, self.sizes.kv_heads
        k, v = (ops.split_heads(ops.linear(x, p.weight, p.bias), G) for p in self.of_source)
        if not isinstance(self.inner, LinearMixer):
            return {"source_k": k, "source_v": v}
        S, z = sum_source(self.inner.maps.of_keys, k, v, source)
        states = {"S": S, "z": z} if self.inner.config.normalizer == "z" else {"S": S}
        return states if self.starts else {SOURCE + name: value for name, value in states.items()}

    def project(self, x: T, step: Step[T]) -> Heads[T]:
        if not self.config.hidden:
            return super().project(x, step)
        ops, H = step.ops, self.sizes.heads
        q, k, v = (ops.split_heads(ops.linear(x, p.weight, p.bias), H) for p in (self.q, self.k, self.v))
        return Heads(q, k, v, q, x)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        if not self.config.hidden:
            return super().forward(x, state, step)
        ops = step.ops
        o, state = self.inner(self.project(x, step), state, step)
        hidden = activate(ops.merge_heads(o), self.config.activation, ops)
        return ops.linear(hidden, self.o.weight, self.o.bias), state

    def state_spec(self) -> list[StateSpec]:
        own = self.inner.state_spec()
        if self.starts:
            return own
        if isinstance(self.config.inside, LinearConfig):
            return [*own, *(replace(s, name=SOURCE + s.name, constant=True) for s in own if s.name in ("S", "z"))]
        size = self.of_values // self.sizes.kv_heads  # of a value
        own = [replace(s, shape=(*s.shape[:-1], size)) if s.name == "v" else s for s in own]
        shape = (BATCH, self.sizes.kv_heads, SOURCE_LENGTH)
        sizes = {"k": self.sizes.size, "v": size}
        return [*own, *(StateSpec(SOURCE + n, "float32", (*shape, d), constant=True) for n, d in sizes.items())]

    @torch.no_grad()
    def fold(self) -> Merged:
        """As attention, and the same of the source's keys."""
        made, packing = super().fold(), self.inner.packing()
        assert isinstance(made, Merged) and packing is not None
        of_keys, of_values = self.of_source
        weight, bias = folded(of_keys, packing.k, 1.0)
        made.source_k.weight.copy_(weight)
        made.source_k.bias.copy_(bias)
        made.source_v.load_state_dict(of_values.state_dict())
        return made
