"""The attention layer: projections, heads, norms of q and k, rotation and fold, around what any attention mixer does.

The layer projects, the mixer computes, and neither knows the other's kind (t2r_export.model.mixers.base). Unfolded, a
layer holds the pretrained projections. Folded, a mixer's own maps are inside one packed projection from x to [φ's
arguments of q | of k | v | what the mixer projects beside], which is what the exported graph computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from t2r_export.config.attention import AttentionConfig, RotaryConfig
from t2r_export.config.mixers import ENCODERS, MIXERS, MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.tagged import Entry, resolve
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes, Mixer, Packing
from t2r_export.model.mixers.linear import HeadNorm
from t2r_export.model.ops import State, T
from t2r_export.model.positions import apply_rope
from t2r_export.model.step import Step
from t2r_runtime.signature import StateSpec


class Attention(Mixer):
    """q, k, v and the output around one attention mixer, `inner`.

    Args:
        config: the mixer's. attention: heads, biases, norms of q and k. rope: the number of the model's rotation, None
            where q and k do not rotate. eps: of norms. feature_rope: as `rope`, of what rotates features. lends:
            whether the layer above takes the attention weights.
    """

    insides: ClassVar[Mapping[str, Entry[MixerConfig]]] = MIXERS

    def __init__(
        self,
        width: int,
        config: MixerConfig,
        attention: AttentionConfig,
        rope: int | None,
        eps: float,
        feature_rope: int | None = None,
        lends: bool = False,
    ) -> None:
        super().__init__(width, config)
        self.attention = attention
        H, G, d = attention.heads, attention.kv_heads, attention.head_size
        scale = d**-0.5 if attention.scale is None else attention.scale
        self.sizes = sizes = HeadSizes(width, H, G, d, eps, rope, scale, attention.softcap, feature_rope, lends)
        # in the order in which weights are drawn: q, k, v, the inside's own, o
        if not config.packed:
            self.q = nn.Linear(width, H * d, bias=attention.qkv_bias)
            self.k = nn.Linear(width, G * d, bias=attention.qkv_bias)
            self.v = nn.Linear(width, G * d, bias=attention.qkv_bias)
        self.inner: AttentionMixer = resolve(self.insides[config.kind].model)(sizes, config)
        self.needs_position = self.inner.needs_position
        if config.packed:
            arguments, extra = self.inner.packed_sizes()
            self.parts = [H * arguments, G * arguments, G * d, *([extra] if extra else [])]
            self.qkv = nn.Linear(width, sum(self.parts))
        self.o = nn.Linear(H * d, width, bias=attention.output_bias)
        if attention.qk_norm:
            self.q_norm, self.k_norm = HeadNorm(d, eps, "rms_norm"), HeadNorm(d, eps, "rms_norm")

    @property
    def rotates(self) -> bool:
        """Whether q and k are rotated between their projection and the mixer."""
        return self.sizes.rope is not None and self.inner.rotates

    def project(self, x: T, step: Step[T]) -> Heads[T]:
        """Rows x (N, D) -> what the mixer takes of them."""
        ops, H, G = step.ops, self.sizes.heads, self.sizes.kv_heads
        if self.config.packed:
            packed = ops.pack_for_fused(ops.linear(x, self.qkv.weight, self.qkv.bias))
            q, k, v, *extra = ops.split(packed, self.parts)
            q, k, v = (ops.split_heads(part, heads) for part, heads in ((q, H), (k, G), (v, G)))
            return Heads(q, k, v, q, x, extra[0] if extra else None)
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.split_heads(both, H + G)
        q, k = ops.split(both, [H, G], axis=1)
        if self.attention.qk_norm:
            q, k = self.q_norm(q, ops), self.k_norm(k, ops)
            both = ops.concat([q, k], axis=1) if self.rotates else both
        plain = q
        if self.rotates:
            assert self.sizes.rope is not None
            rotation = (step.absolute_rotation if self.inner.absolute else step.rotation)(self.sizes.rope)
            q, k = ops.split(apply_rope(both, rotation, ops), [H, G], axis=1)
        return Heads(q, k, ops.split_heads(v, G), plain, x)

    def sequence(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        o, state = self.inner(self.project(x, step), state, step)  # (B, H, T, V)
        return step.ops.linear(step.ops.merge_heads(o), self.o.weight, self.o.bias), state

    step = sequence  # the inside knows how many tokens there are

    def statistics(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        return self.inner.statistics(self.project(x, step), state, step)

    def state_spec(self) -> list[StateSpec]:
        return self.inner.state_spec()

    def memory_length(self) -> int:
        return self.inner.memory_length()

    def penalty(self) -> Tensor:
        return self.inner.penalty()

    def why_not_foldable(self) -> str | None:
        if self.attention.qk_norm and self.inner.packing() is not None:
            return "q and k are normalized between the projection and φ (qk_norm)"
        return self.inner.why_not_foldable()

    def fold_state(self, state: State[Tensor]) -> State[Tensor]:
        return self.inner.fold_state(state)

    def _remade(self, config: MixerConfig) -> Attention:
        """A layer of this kind around another mixer, with fresh weights."""
        sizes = self.sizes
        return type(self)(self.width, config, self.attention, sizes.rope, sizes.eps, sizes.feature_rope, sizes.lends)

    @torch.no_grad()
    def fold(self) -> Attention:
        """W̃ = W_φ W, b̃ = b_φ + W_φ b for q and k (eq. 8), any scale of q inside; computed in float64."""
        assert self.why_not_foldable() is None
        inner, packing = self.inner.fold(self.o.weight), self.inner.packing()
        made = self._remade(inner.config).to(self.o.weight)
        made.inner.load_state_dict(inner.state_dict())
        made.o.load_state_dict(self.o.state_dict())
        if packing is None:
            for name in ("q", "k", "v", *(["q_norm", "k_norm"] if self.attention.qk_norm else [])):
                made.get_submodule(name).load_state_dict(self.get_submodule(name).state_dict())
        else:
            parts = self._packed(packing)
            made.qkv.weight.copy_(torch.cat([weight for weight, _ in parts]))
            made.qkv.bias.copy_(torch.cat([bias for _, bias in parts]))
        return made

    def _packed(self, packing: Packing) -> list[tuple[Tensor, Tensor]]:
        """Weights (n, D) and biases (n) of the packed projection, one below the other, float64."""
        parts = [
            folded(self.q, packing.q, packing.query_scale),
            folded(self.k, packing.k, 1.0),
            (self.v.weight.double(), _bias(self.v)),
        ]
        if packing.extra is not None:
            weight, bias = packing.extra
            parts.append((weight.double(), bias.double()))
        return parts


class EncoderAttention(Attention):
    """The attention layer of an encoder."""

    insides = ENCODERS


def rotations(model: ModelConfig) -> list[tuple[RotaryConfig, int]]:
    """The different rotations of a model's layers, each with how many numbers of a head rotate."""
    found: dict[tuple[RotaryConfig, int], None] = {}
    for layer, mixer in enumerate(model.layers):
        attention = model.attention_of(layer)
        if attention is None or attention.rotary is None:
            continue
        found[attention.rotary, attention.rotary_size] = None
        of_features = mixer.feature_rotation(attention)
        if of_features is not None:
            found[of_features] = None
    return list(found)


def build_mixer(model: ModelConfig, layer: int, kind: type[Attention] = Attention) -> Mixer:
    """The mixer of a layer as the config has it, with fresh weights.

    Args:
        kind: of an attention layer: a decoder's or an encoder's.
    """
    config, attention = model.layers[layer], model.attention_of(layer)
    if attention is None or config.borrows:
        given = () if attention is None else (attention,)
        mixer: Mixer = resolve(MIXERS[config.kind].model)(model.width, config, *given)
        return mixer
    lends = any(above.borrows for above in model.layers[layer + 1 : layer + 2])
    if attention.rotary is None:
        return kind(model.width, config, attention, None, model.norm_eps, lends=lends)
    all_rotations, of_features = rotations(model), config.feature_rotation(attention)
    rope = all_rotations.index((attention.rotary, attention.rotary_size))
    feature_rope = None if of_features is None else all_rotations.index(of_features)
    return kind(model.width, config, attention, rope, model.norm_eps, feature_rope, lends)


def _bias(projection: nn.Linear) -> Tensor:
    bias: Tensor | None = projection.bias
    if bias is None:
        return torch.zeros(projection.out_features, dtype=torch.float64, device=projection.weight.device)
    return bias.double()


def folded(projection: nn.Linear, affine: tuple[Tensor, Tensor | None] | None, scale: float) -> tuple[Tensor, Tensor]:
    """Weight (heads·A, D) and bias (heads·A) of x -> W_φ · scale · (W x + b) + b_φ, the arguments of φ, float64."""
    weight, bias = projection.weight.double() * scale, _bias(projection) * scale
    if affine is None:
        return weight, bias
    W_phi, b_phi = affine[0].double(), affine[1]  # (heads, d, A) and (heads, A)
    heads, d, _ = W_phi.shape
    weight = torch.einsum("hdk,hdD->hkD", W_phi, weight.view(heads, d, -1))
    bias = torch.einsum("hdk,hd->hk", W_phi, bias.view(heads, d))
    if b_phi is not None:
        bias = bias + b_phi.double()
    return weight.flatten(0, 1), bias.flatten()
