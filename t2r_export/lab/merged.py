"""Merged layers: joint attention to prefix and source (CAN, Li et al. 2021, arXiv 2101.00542, section 3).

In linear attention the sums add:

    o_t = φ(q_t)ᵀ (S_source + S_t) / guard(φ(q_t)·(z_source + z_t))

S_source and z_source are the initial S and z. With a gate they are separate constant states, which would decay
otherwise. Softmax layers store the source's keys and values and apply one softmax to source and prefix. The source has
its own key and value projections unless `shared`.

As published, softmax layers can include the feed-forward: its first matrix is the value projection, its second matrix
the output projection,

    y = W_down act(Σ_i a_i (W_v x_i + b))
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.lab.config.merged import MergedConfig
from t2r_export.model.activations import activate
from t2r_export.model.mixers.base import Heads
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.mixers.source import sum_source
from t2r_export.model.ops import State, T
from t2r_export.model.parts.attention import Attention, load_folded
from t2r_export.model.parts.base import Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, SOURCE, SOURCE_LENGTH, StateSpec


class Merged(Attention):
    """Self-attention that also reads a source, optionally with a feed-forward inside."""

    config: MergedConfig

    def __init__(self, site: Site, config: MergedConfig) -> None:
        super().__init__(site, config)
        packed, width = config.inside.packed, site.width
        self.of_values = config.hidden or config.kv_heads * config.head_size  # size of all values
        self.own = not config.shared or packed  # packed projections are for the prefix only
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
        self.starts = linear is not None and linear.update_rule == "linear"

    @property
    def of_source(self) -> tuple[nn.Linear, nn.Linear]:
        """The source's key and value projections."""
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
        size = self.of_values // self.sizes.kv_heads  # per value head
        own = [replace(s, shape=(*s.shape[:-1], size)) if s.name == "v" else s for s in own]
        shape = (BATCH, self.sizes.kv_heads, SOURCE_LENGTH)
        sizes = {"k": self.sizes.size, "v": size}
        return [*own, *(StateSpec(SOURCE + n, "float32", (*shape, d), constant=True) for n, d in sizes.items())]

    @torch.no_grad()
    def fold(self) -> Merged:
        """Fold attention and the source's keys."""
        made, packing = super().fold(), self.inner.packing()
        assert isinstance(made, Merged) and packing is not None
        of_keys, of_values = self.of_source
        load_folded(made.source_k, of_keys, packing.k, 1.0)
        made.source_v.load_state_dict(of_values.state_dict())
        return made
