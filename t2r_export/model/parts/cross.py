"""Cross-attention: queries from the decoder, keys and values from the encoder output, around a cross mixer.

Keys and values are computed once per source, in the encoder's graph.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from t2r_export.config.mixers import INSIDES
from t2r_export.config.parts import CrossConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.mixers.cross import CrossMixer
from t2r_export.model.ops import State, T
from t2r_export.model.parts.attention import copy_modules, head_sizes, load_folded
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import StateSpec


class Cross(Part):
    """Projections around a cross mixer, `inner`. Mixers that borrow attention weights have no q and k."""

    config: CrossConfig

    def __init__(self, site: Site, config: CrossConfig) -> None:
        super().__init__(site, config)
        inside, width = config.inside, site.width
        H, G, d = config.heads, config.kv_heads, config.head_size
        self.sizes = head_sizes(site, config)
        self.inner: CrossMixer = resolve(INSIDES[inside.kind].forms[config.form])(self.sizes, inside)
        self.needs_lengths = self.inner.needs_lengths
        if not inside.borrows:
            of_q, of_k = self.inner.argument_sizes() if inside.folded else (d, d)
            self.q = nn.Linear(width, H * of_q, bias=config.qkv_bias or inside.folded)
            self.k = nn.Linear(width, G * of_k, bias=config.qkv_bias or inside.folded)
        self.v = nn.Linear(width, G * d, bias=config.qkv_bias)
        self.o = nn.Linear(H * d, width, bias=config.output_bias)

    def read(self, x: T, source: Step[T]) -> State[T]:
        ops, G = source.ops, self.sizes.kv_heads
        v = ops.split_heads(ops.linear(x, self.v.weight, self.v.bias), G)
        k = v if self.config.borrows else ops.split_heads(ops.linear(x, self.k.weight, self.k.bias), G)
        return self.inner.read(k, v, source)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, H = step.ops, self.sizes.heads
        q = x if self.config.borrows else ops.split_heads(ops.linear(x, self.q.weight, self.q.bias), H)
        return ops.linear(ops.merge_heads(self.inner(q, state, step)), self.o.weight, self.o.bias), {}

    def state_spec(self) -> list[StateSpec]:
        return self.inner.state_spec()

    def why_not_foldable(self) -> str | None:
        return f"{self.config.label} layers have no feature map to fold" if self.inner.packing() is None else None

    @torch.no_grad()
    def fold(self) -> Cross:
        """W̃ = W_φ W, b̃ = b_φ + W_φ b for q and k (Kasai et al. 2021, eq. 8), computed in float64."""
        packing = self.inner.packing()
        assert packing is not None
        inner = self.inner.fold(self.o.weight)
        made = Cross(self.site, dataclasses.replace(self.config, inside=inner.config)).to(self.o.weight)
        made.inner.load_state_dict(inner.state_dict())
        load_folded(made.q, self.q, packing.q, packing.query_scale)
        load_folded(made.k, self.k, packing.k, 1.0)
        copy_modules(made, self, "v", "o")
        return made
