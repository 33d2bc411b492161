"""Self-attention: projections, norms and rotation of q and k, a mixer, and folding.

Unfolded layers have the pretrained projections. Folded layers have one packed projection from x to [φ's arguments of q,
of k, v, extra], as exported graphs compute it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import INSIDES, MixerConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import InsideConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes, Packing
from t2r_export.model.mixers.norms import Norm
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.parts.heads import Pieces, head_units, joined_pieces
from t2r_export.model.positions.scores import build_scores
from t2r_export.model.positions.turns import apply_rope
from t2r_export.model.step import Step
from t2r_export.model.units import Units
from t2r_runtime.contract.state_spec import StateSpec


class Attention(Part):
    """Projections around an attention mixer, `inner`. Mixers that borrow attention weights have no q and k."""

    config: InsideConfig

    def __init__(self, site: Site, config: InsideConfig) -> None:
        super().__init__(site, config)
        inside = config.inside
        H, G, d = config.heads, config.kv_heads, config.head_size
        rope, feature_rope = [*map(site.rope, config.rotations()), None, None][:2]
        self.sizes = sizes = head_sizes(site, config, rope, feature_rope)
        # the order determines random initialization: q, k, v, mixer, o
        if not inside.packed:
            if not inside.borrows:
                self.q = nn.Linear(site.width, H * d, bias=config.qkv_bias)
                self.k = nn.Linear(site.width, G * d, bias=config.qkv_bias)
            self.v = nn.Linear(site.width, G * d, bias=config.qkv_bias)
        self.inner: AttentionMixer = resolve(INSIDES[inside.kind].forms[config.form])(sizes, inside)
        self.needs_position = self.inner.needs_position or (config.position_scale is not None and self.inner.scales)
        if inside.packed:
            arguments, extra = self.inner.packed_sizes()
            self.parts = [(H + G) * arguments, G * d, *([extra] if extra else [])]
            self.qkv = nn.Linear(site.width, sum(self.parts))
        self.o = nn.Linear(H * d, site.width, bias=config.output_bias)
        if config.qk_norm and not inside.borrows:
            wide, norm = config.qk_norm_wide, NormConfig("rms", config.norm_eps)
            self.q_norm, self.k_norm = (Norm(norm, n * d if wide else d) for n in (H, G))
        if config.gate:
            own = config.gate_per_head
            self.gate = nn.Linear(site.width, H if own else H * d, bias=config.qkv_bias and not own)

    @property
    def rotates(self) -> bool:
        """Whether the layer rotates q and k."""
        return self.sizes.rope is not None and self.inner.rotates

    def project(self, x: T, step: Step[T]) -> Heads[T]:
        """Rows x (N, D) -> inputs of the mixer."""
        ops, H, G = step.ops, self.sizes.heads, self.sizes.kv_heads
        if self.config.inside.borrows:
            v = ops.split_heads(ops.linear(x, self.v.weight, self.v.bias), G)
            return Heads(v, v, v, v, x)  # q and k are unused
        if self.config.inside.packed:
            packed = ops.pack_for_fused(ops.linear(x, self.qkv.weight, self.qkv.bias))
            both, v, *extra = ops.split(packed, self.parts)
            q, k = ops.split(ops.split_heads(both, H + G), [H, G], axis=1)
            return Heads(q, k, ops.split_heads(v, G), q, x, extra[0] if extra else None)
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.split_heads(both, H + G)
        q, k = ops.split(both, [H, G], axis=1)
        if self.config.qk_norm and not self.config.qk_norm_after:
            q, k = self._normed(q, k, ops)
            both = ops.concat([q, k], axis=1) if self.rotates else both
        plain = q
        if self.rotates:
            assert self.sizes.rope is not None
            rotation = (step.absolute_rotation if self.inner.absolute else step.rotation)(self.sizes.rope)
            q, k = ops.split(apply_rope(both, rotation, ops), [H, G], axis=1)
        if self.config.qk_norm_after:
            q, k = self._normed(q, k, ops)
        if self.config.position_scale is not None and self.inner.scales:
            q = ops.mul(q, step.query_scale(self.config.position_scale))
        return Heads(q, k, ops.split_heads(v, G), plain, x)

    def _normed(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """Heads (B, heads, T, d), normalized by the RMS of each head, or by that of all heads of q or k."""
        wide, pairs = self.config.qk_norm_wide, ((q, self.q_norm), (k, self.k_norm))
        q, k = (
            ops.split_heads(norm(ops.merge_heads(x), ops), x.shape[1]) if wide else norm(x, ops) for x, norm in pairs
        )
        return q, k

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        o, state = self.inner(self.project(x, step), state, step)  # (B, H, T, V)
        ops, c = step.ops, self.config
        gate = ops.sigmoid(ops.linear(x, self.gate.weight, self.gate.bias)) if c.gate else None
        if gate is not None and c.gate_per_head:
            o = ops.mul(o, ops.split_heads(gate, c.heads))
        y = ops.merge_heads(o)
        if gate is not None and not c.gate_per_head:
            y = ops.mul(y, gate)
        return ops.linear(y, self.o.weight, self.o.bias), state

    def units(self, kind: str) -> Units | str | None:
        if kind == "heads":
            why = "attention weights that two layers share" if self.site.lends else self.inner.why_heads_count()
            return why or head_units(self.config, self._pieces)
        found = self.inner.channels() if kind == "state" else None
        if not isinstance(found, Units):
            return found
        rows = {f"inner.{name}": owned for name, owned in found.rows.items()}
        smaller = found.config
        return dataclasses.replace(
            found, rows=rows, config=lambda kept: dataclasses.replace(self.config, inside=smaller(kept))
        )

    def _pieces(self, config: InsideConfig) -> Pieces:
        """The pieces of each weight of a part with this config."""
        with torch.random.fork_rng(devices=[]):
            part = self if config == self.config else type(self)(self.site, config)
        joined = {f"inner.{name}": sizes for name, sizes in part.inner.joined().items()}
        return {name: joined_pieces(weight.shape, joined.get(name)) for name, weight in part.state_dict().items()}

    def statistics(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        return self.inner.statistics(self.project(x, step), state, step)

    def state_spec(self) -> list[StateSpec]:
        return self.inner.state_spec()

    def memory_length(self) -> int:
        return self.inner.memory_length()

    def penalty(self) -> Tensor:
        return self.inner.penalty()

    def why_not_foldable(self) -> str | None:
        if self.config.qk_norm and self.inner.packing() is not None:
            return "q and k are normalized between the projection and φ (qk_norm)"
        return self.inner.why_not_foldable()

    def fold_state(self, state: State[Tensor]) -> State[Tensor]:
        return self.inner.fold_state(state)

    def _remade(self, inside: MixerConfig) -> Attention:
        """This part with another mixer and initial weights."""
        return type(self)(self.site, dataclasses.replace(self.config, inside=inside))

    @torch.no_grad()
    def fold(self) -> Attention:
        """W̃ = W_φ W, b̃ = b_φ + W_φ b for q and k (eq. 8) with the scale of q, computed in float64."""
        assert self.why_not_foldable() is None
        inner, packing = self.inner.fold(self.o.weight), self.inner.packing()
        made = self._remade(inner.config).to(self.o.weight)
        made.inner.load_state_dict(inner.state_dict())
        copy_modules(made, self, "o", *(["gate"] if self.config.gate else []))
        if packing is None:
            copy_modules(made, self, "q", "k", "v", *(["q_norm", "k_norm"] if self.config.qk_norm else []))
        else:
            parts = self._packed(packing)
            made.qkv.weight.copy_(torch.cat([weight for weight, _ in parts]))
            made.qkv.bias.copy_(torch.cat([bias for _, bias in parts]))
        return made

    def _packed(self, packing: Packing) -> list[tuple[Tensor, Tensor]]:
        """Weights (n, D) and biases (n) of the packed projection in order, float64."""
        parts = [
            folded(self.q, packing.q, packing.query_scale),
            folded(self.k, packing.k, 1.0),
            (self.v.weight.double(), _bias(self.v)),
        ]
        if packing.extra is not None:
            weight, bias = packing.extra
            parts.append((weight.double(), bias.double()))
        return parts


def head_sizes(site: Site, config: InsideConfig, rope: int | None = None, feature_rope: int | None = None) -> HeadSizes:
    """The head sizes of a mixer."""
    scale = config.head_size**-0.5 if config.scale is None else config.scale
    shape = (site.width, config.heads, config.kv_heads, config.head_size)
    positions = build_scores(config, scale) if config.inside.scored else None
    others = site.lends, positions, config.sink, config.qk_norm_after
    return HeadSizes(*shape, config.norm_eps, rope, scale, config.softcap, feature_rope, *others)


def copy_modules(made: nn.Module, source: nn.Module, *names: str) -> None:
    """Copy the weights of the named submodules."""
    for name in names:
        made.get_submodule(name).load_state_dict(source.get_submodule(name).state_dict())


def load_folded(made: nn.Linear, own: nn.Linear, affine: tuple[Tensor, Tensor | None] | None, scale: float) -> None:
    """Set the weights of a projection to those of `folded`."""
    weight, bias = folded(own, affine, scale)
    made.weight.copy_(weight)
    made.bias.copy_(bias)


def _bias(projection: nn.Linear) -> Tensor:
    bias: Tensor | None = projection.bias
    if bias is None:
        return torch.zeros(projection.out_features, dtype=torch.float64, device=projection.weight.device)
    return bias.double()


def folded(projection: nn.Linear, affine: tuple[Tensor, Tensor | None] | None, scale: float) -> tuple[Tensor, Tensor]:
    """Weight (heads·A, D) and bias (heads·A) of W_φ · scale · (W x + b) + b_φ, the arguments of φ, float64."""
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
