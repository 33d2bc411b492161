"""The cross layer: a decoder's queries, a source's keys and values, and the fold, around what any cross mixer does.

Its keys and values are computed from the encoder's output, once, and so W_φ is folded into q in the step and into k in
the encoder's graph.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers import CROSSES, MixerConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.attention import folded
from t2r_export.model.mixers.base import HeadSizes, Mixer
from t2r_export.model.mixers.cross import CrossMixer
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step
from t2r_runtime.signature import StateSpec


class CrossAttention(Mixer):
    """q from the decoder's rows, k and v from the encoder's, and the output around one cross mixer, `inner`."""

    def __init__(self, width: int, config: MixerConfig, attention: AttentionConfig, eps: float) -> None:
        super().__init__(width, config)
        self.attention = attention
        H, G, d = attention.heads, attention.kv_heads, attention.head_size
        scale = d**-0.5 if attention.scale is None else attention.scale
        self.sizes = HeadSizes(width, H, G, d, eps, None, scale, attention.softcap)
        self.inner: CrossMixer = resolve(CROSSES[config.kind].model)(self.sizes, config)
        self.needs_lengths = self.inner.needs_lengths
        of_q, of_k = self.inner.argument_sizes() if config.folded else (d, d)
        self.q = nn.Linear(width, H * of_q, bias=attention.qkv_bias or config.folded)
        self.k = nn.Linear(width, G * of_k, bias=attention.qkv_bias or config.folded)
        self.v = nn.Linear(width, G * d, bias=attention.qkv_bias)
        self.o = nn.Linear(H * d, width, bias=attention.output_bias)

    def read(self, x: T, source: Step[T]) -> State[T]:
        """The encoder's rows x (B·M, D), and what is known of the source -> the layer's states."""
        ops = source.ops
        k, v = (ops.split_heads(ops.linear(x, p.weight, p.bias), self.sizes.kv_heads) for p in (self.k, self.v))
        return self.inner.read(k, v, source)

    def sequence(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        q = ops.split_heads(ops.linear(x, self.q.weight, self.q.bias), self.sizes.heads)
        return ops.linear(ops.merge_heads(self.inner(q, state, step)), self.o.weight, self.o.bias), {}

    step = sequence  # the operators know how many tokens there are

    def state_spec(self) -> list[StateSpec]:
        return self.inner.state_spec()

    def why_not_foldable(self) -> str | None:
        return super().why_not_foldable() if self.inner.packing() is None else None

    @torch.no_grad()
    def fold(self) -> CrossAttention:
        """W̃ = W_φ W, b̃ = b_φ + W_φ b for q and k (Kasai et al. 2021, eq. 8), computed in float64."""
        packing = self.inner.packing()
        assert packing is not None
        inner = self.inner.fold(self.o.weight)
        made = CrossAttention(self.width, inner.config, self.attention, self.sizes.eps).to(self.o.weight)
        made.inner.load_state_dict(inner.state_dict())
        for mine, own, affine, scale in (
            (made.q, self.q, packing.q, packing.query_scale),
            (made.k, self.k, packing.k, 1.0),
        ):
            weight, bias = folded(own, affine, scale)
            mine.weight.copy_(weight)
            mine.bias.copy_(bias)
        made.v.load_state_dict(self.v.state_dict())
        made.o.load_state_dict(self.o.state_dict())
        return made
