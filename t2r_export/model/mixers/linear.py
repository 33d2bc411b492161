"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236), with any feature map φ of `mixers.feature_maps`.

    S_t = S_{t-1} + φ(k_t) v_tᵀ      z_t = z_{t-1} + φ(k_t)      o_t = φ(q_t)ᵀ S_t / guard(φ(q_t)·z_t)

With φ = relu(W_φ x + b_φ) this is T2R (Kasai et al. 2021, "Finetuning Pretrained Transformers into RNNs", arXiv
2103.13076, eq. 4 to 8). Without the normalizer z, o is φ(q)ᵀS, optionally with a norm per head. Other update rules are
in t2r_export.model.recurrences, gates in `mixers.gates`.

In a rotary model q and k rotate before φ (positions keep), or the features of the numerator rotate (positions after; Su
et al. 2021, arXiv 2104.09864, eq. 19):

    S_t = S_{t-1} + (R_t φ(k_t)) v_tᵀ      o_t = (R_t φ(q_t))ᵀ S_t / guard(φ(q_t)·z_t)

Then only relative positions matter, and the layer folds: a packed projection maps x to [φ's arguments of q | of k | v |
gates].
"""

from __future__ import annotations

import dataclasses
from typing import Generic, NamedTuple

import torch
from torch import Tensor

from t2r_export.config.mixers import LinearConfig
from t2r_export.config.norm import NormConfig
from t2r_export.model.mixers.base import Attended, AttentionMixer, Heads, HeadSizes, Packing
from t2r_export.model.mixers.channels import channels
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.mixers.feature_maps import FeatureMaps, dead_features
from t2r_export.model.mixers.gates import Control, Gates, OutputGate
from t2r_export.model.mixers.maps import EPS
from t2r_export.model.mixers.memory import Memory, attend_memory
from t2r_export.model.mixers.norms import Norm
from t2r_export.model.mixers.source import read_sums
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.positions.turns import Rotation, apply_rope
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.units import Units
from t2r_runtime.contract.state_spec import BATCH, StateSpec

ROTATED = "positions are rotated between the projection and φ (positions='keep')"  # obstacle to folding


def head_norm(config: LinearConfig, sizes: HeadSizes) -> Norm:
    """The norm of each head's output (…, V) that replaces z, or the identity; all heads share its scale.

    group_norm is that of RetNet (Sun et al. 2023, arXiv 2307.08621), rms_norm that of DeltaNet (Yang et al. 2024, arXiv
    2406.06484).
    """
    kind = {"group_norm": "layer", "rms_norm": "rms"}.get(config.normalizer)
    return Norm(None if kind is None else NormConfig(kind, sizes.eps), sizes.size)


class Features(NamedTuple, Generic[T]):
    """Inputs of the update rule for T tokens."""

    q: T  # φ(q), (B, H, T, K)
    k: T  # φ(k), (B, G, T, K)
    v: T  # (B, G, T, V)
    control: Control[T]
    output_logits: T | None  # of the output gate, rows (N, H·V)
    after: State[T]  # convolution state after


def attend(
    q: T,
    k: T,
    v: T,
    state: State[T],
    control: Control[T],
    of_q: Rotation[T] | None,
    of_k: Rotation[T] | None,
    ops: Ops[T],
) -> tuple[T, T | None, T, T | None]:
    """`Ops.linear_attention`; rotations apply to the features of S, not of z (Su et al. 2021, eq. 19)."""
    S, z = state["S"], state.get("z")
    if of_q is None or of_k is None:
        return ops.linear_attention(q, k, v, S, z, control.log_gate, control.beta)
    if of_q is of_k:
        q_turned, k_turned = ops.each(lambda x: apply_rope(x, of_k, ops), q, k)
    else:
        q_turned, k_turned = apply_rope(q, of_q, ops), apply_rope(k, of_k, ops)
    numerator, _, S, _ = ops.linear_attention(q_turned, k_turned, v, S, None, control.log_gate, control.beta)
    if z is None:
        return numerator, None, S, None
    denominator, z = ops.normalizer(q, k, z, control.log_gate)
    return numerator, denominator, S, z


class LinearMixer(AttentionMixer):
    """Causal linear attention, unfolded or folded."""

    absolute = True  # φ is applied after the rotation
    config: LinearConfig

    def __init__(self, sizes: HeadSizes, config: LinearConfig) -> None:
        super().__init__(sizes, config)
        self.rotates = config.positions == "keep"
        self.scales = self.rotates and sizes.rope is not None  # otherwise φ is independent of positions
        self.maps = FeatureMaps(sizes.heads, sizes.kv_heads, sizes.size, config)
        self.gates = Gates(sizes.width, sizes.kv_heads, config)
        self.norm = head_norm(config, sizes)
        if config.output_gate:
            self.output_gate = OutputGate(sizes.width, sizes.heads, sizes.size, config.folded)
        if config.conv:
            self.conv = ShortConvolution(config.conv, sum(self._channels))
        if config.memory:
            d = sizes.size
            self.memory = Memory(sizes.kv_heads, config.memory, d, d, config.feature_size, config.folded)

    @property
    def _channels(self) -> list[int]:
        """Channels of the convolution: the arguments of φ(q) and φ(k), and v."""
        sizes, (q, k) = self.sizes, (self.maps.of_queries.argument_size, self.maps.of_keys.argument_size)
        return [sizes.heads * q, sizes.kv_heads * k, sizes.kv_heads * sizes.size]

    def features(self, heads: Heads[T], state: State[T], ops: Ops[T]) -> Features[T]:
        """The inputs of the update rule."""
        q, k, v, after = heads.q, heads.k, heads.v, {}
        if not self.config.folded and self.config.query_scale != 1.0:
            q = ops.mul(q, self.config.query_scale)
        q, k = self.maps.arguments(q, k, ops)
        if self.config.conv:
            rows, after["conv"] = self.conv(ops.concat([ops.merge_heads(x) for x in (q, k, v)]), state["conv"], ops)
            parts, heads_of = ops.split(rows, self._channels), (q.shape[1], k.shape[1], v.shape[1])
            q, k, v = (ops.split_heads(part, count) for part, count in zip(parts, heads_of, strict=True))
        q, k = self.maps.activate(q, k, ops)
        gate_logits, output_logits = self._logits(heads, ops)
        control = self.gates.control(gate_logits, ops)
        if self.config.delta:
            q, k = _unit(q, ops), _unit(k, ops)
        if control.entering is not None:
            k = ops.mul(k, control.entering)
        return Features(q, k, v, control, output_logits, after)

    def _logits(self, heads: Heads[T], ops: Ops[T]) -> tuple[T | None, T | None]:
        """Logits (N, ·) of the gates and of the output gate, if any."""
        gated = self.config.output_gate
        if not self.config.folded:
            return self.gates.logits(heads.x, ops), self.output_gate.logits(heads.x, ops) if gated else None
        if not gated or heads.extra is None:
            return heads.extra, None
        if not self.gates.rows:
            return None, heads.extra
        of_gates, of_output = ops.split(heads.extra, [self.gates.rows, self.output_gate.rows])
        return of_gates, of_output

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        q, k, v, control, output_logits, after = self.features(heads, state, ops)
        if "z" in state:
            q = ops.damp(q)
        rope = self.sizes.feature_rope
        rotation = None if rope is None else step.rotation(rope)
        o, denominator, S, z = attend(q, k, v, state, control, rotation, rotation, ops)
        if self.config.memory:
            remembered, weight = attend_memory(q, self.memory.collect(self.maps.of_keys, ops), ops)
            o = ops.add(o, remembered)
            denominator = None if denominator is None else ops.add(denominator, weight)
        if "source_S" in state:  # of a merged layer with a gate
            seen, share = read_sums(q, state["source_S"], state.get("source_z"), ops)
            o = ops.add(o, seen)
            denominator = None if denominator is None or share is None else ops.add(denominator, share)
        if denominator is not None:
            o = ops.divide(o, denominator, self.config.guard)
        o = self.norm(o, ops)
        if output_logits is not None:
            o = self.output_gate(o, output_logits, ops)
        return o, {"S": S, **({} if z is None else {"z": z}), **after}

    def is_new(self) -> bool:
        return not self.config.folded and (self.maps.is_new or self.gates.is_new)

    def start(self, seen: Attended) -> None:
        self.gates.start_at(seen.distance)
        keys = seen.generator if self.config.map_init == "keys" else None
        self.maps.start_at(seen.q * self.config.query_scale, seen.k, keys, seen.step.ops)

    def statistics(self, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        """Fractions of features that are 0 for all tokens, and the smallest φ(q)·z before the guard."""
        q, k, _, control, *_ = self.features(heads, state, step.ops)
        found = dead_features(q, k)
        if self.config.normalizer == "z":
            found["smallest_normalizer"] = step.ops.normalizer(q, k, state["z"], control.log_gate)[0].min()
        return found

    def state_spec(self) -> list[StateSpec]:
        G, K, V = self.sizes.kv_heads, self.config.feature_size, self.sizes.size
        S, z = StateSpec("S", "float32", (BATCH, G, K, V)), StateSpec("z", "float32", (BATCH, G, K))
        conv = [self.conv.state_spec()] if self.config.conv else []
        return [S, *([z] if self.config.normalizer == "z" else []), *conv]

    def channels(self) -> Units | str:
        if self.config.folded:
            return "a folded layer"
        return channels(self.config, self.sizes, self._channels if self.config.conv else None)

    def joined(self) -> dict[str, list[int]]:
        gates = self.gates.sizes
        found = {"gates.weight": gates, "gates.offset": gates} if gates else {}
        return {**found, "conv.weight": self._channels} if self.config.conv else found

    def why_heads_count(self) -> str | None:
        return self.gates.why_heads_count()

    def packed_sizes(self) -> tuple[int, int]:
        return self.maps.of_queries.argument_size, self.gates.rows + (
            self.output_gate.rows if self.config.output_gate else 0
        )

    def why_not_foldable(self) -> str | None:
        if self.rotates and self.sizes.rope is not None:
            return ROTATED
        return None

    def packing(self) -> Packing:
        beside: list[Gates | OutputGate] = [self.gates] if self.gates.rows else []
        beside += [self.output_gate] if self.config.output_gate else []
        weights: list[Tensor] = [part.weight for part in beside]
        offsets: list[Tensor] = [part.offset for part in beside]
        extra = (torch.cat(weights), torch.cat(offsets)) if beside else None
        affine_q, affine_k = self.maps.of_queries.affine(), self.maps.of_keys.affine()
        return Packing(affine_q, affine_k, self.config.query_scale, extra)

    @torch.no_grad()
    def fold(self, like: Tensor) -> LinearMixer:
        folded = LinearMixer(self.sizes, dataclasses.replace(self.config, folded=True)).to(like)
        folded.maps.load_folded(self.maps)
        folded.norm.load_state_dict(self.norm.state_dict())
        if self.config.conv:
            folded.conv.load_state_dict(self.conv.state_dict())
        if self.config.memory:
            folded.memory.sums.copy_(self.memory.collect(self.maps.of_keys, TorchOps())[0])
        return folded


def _unit(x: T, ops: Ops[T]) -> T:
    """Scale x (…, K) to unit length."""
    return ops.mul(ops.rms_norm(x, None, EPS), x.shape[-1] ** -0.5)
