"""Linear attention (Katharopoulos et al. 2020, arXiv 2006.16236), with any feature map φ of `mixers.feature_maps`.

    S_t = S_{t-1} + φ(k_t) v_tᵀ      z_t = z_{t-1} + φ(k_t)      o_t = φ(q_t)ᵀ S_t / guard(φ(q_t)·z_t)

With φ = relu(W_φ x + b_φ) this is T2R (Kasai et al. 2021, "Finetuning Pretrained Transformers into RNNs", arXiv
2103.13076, eq. 4 to 8). Without the normaliser z, o is φ(q)ᵀS itself, or that normalised head by head. Other ways for
S and z to take in a token stand in `mixers.recurrences`, what they ask of a token in `mixers.gates`.

Unfolded, a layer holds the pretrained projections and a map for each head. Folded, the map's affine part is inside one
packed projection from x to [φ's arguments of q | of k | v], which is what the exported graph computes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.mixers.feature_maps import EPS, FEATURE_MAPS, FeatureMap, build_feature_map
from t2r_export.model.mixers.gates import Control, Gates
from t2r_export.model.mixers.memory import Memory, read
from t2r_export.model.mixers.recurrences import RECURRENCES, chunked, guarded
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary, rotate
from t2r_runtime.signature import BATCH, StateSpec


class HeadNorm(nn.Module):
    """o of each head (…, V) with mean 0 and variance 1, or divided by its root mean square, then scaled.

    Group norm (Wu and He 2018) with a group a head, as RetNet has in place of z (Sun et al. 2023, arXiv 2307.08621);
    the root mean square form is DeltaNet's (Yang et al. 2024, arXiv 2406.06484). The scale is one for all heads: the
    output projection could do a head's own.
    """

    def __init__(self, size: int, eps: float, kind: str) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if kind == "group_norm" else None

    def forward(self, o: Any, ops: TorchOps = TORCH) -> Any:
        if self.bias is None:
            return ops.rms_norm(o, self.weight, self.eps)
        return ops.layer_norm(o, self.weight, self.bias, self.eps)


class LinearMixer(Mixer):
    """Linear attention, unfolded (q, k, v, and the maps) or folded (qkv, and what is left of the maps)."""

    config: LinearConfig

    def __init__(self, model: ModelConfig, config: LinearConfig) -> None:
        super().__init__(model, config)
        H, G, d = model.heads, model.kv_heads, model.head_size
        self.model_config = model
        self.rotates = model.position == "rotary" and config.positions == "keep"
        if not config.folded:
            self.q = nn.Linear(model.width, H * d, bias=model.qkv_bias)
            self.k = nn.Linear(model.width, G * d, bias=model.qkv_bias)
            self.v = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.joint = FEATURE_MAPS[config.feature_map].joint
        if self.joint:
            self.phi = build_feature_map(G, d, config)
        else:
            self.phi_q = build_feature_map(H, d, config)
            if not config.shared_features:
                self.phi_k = build_feature_map(G, d, config)
                self.phi_q.imitate(self.phi_k)
        self.gates = Gates(model.width, G, config)
        if config.folded:
            self.qkv = nn.Linear(model.width, (H + G) * self._maps[0].argument_size + G * d + self.gates.rows)
        if config.normalizer in ("group_norm", "rms_norm"):
            self.norm = HeadNorm(d, model.norm_eps, config.normalizer)
        self.o = nn.Linear(H * d, model.width, bias=model.output_bias)
        if config.memory:
            self.memory = Memory(G, config.memory, d, d, config.feature_size, config.folded)

    @property
    def _maps(self) -> tuple[FeatureMap, FeatureMap]:
        """Of q and of k."""
        if self.joint:
            return self.phi, self.phi
        return self.phi_q, self.phi_q if self.config.shared_features else self.phi_k

    def features(self, x: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor, Control]:
        """x (B, T, D) -> what the update rule takes: φ(q) (B, T, H, K), φ(k) (B, T, G, K), v (B, T, G, V), gates."""
        B, T, _ = x.shape
        H, G, d, K = self.heads, self.kv_heads, self.head_size, self.config.feature_size
        phi_q, phi_k = self._maps
        if self.config.folded:
            A = phi_q.argument_size
            q, k, v, logits = self.qkv(x).split([H * A, G * A, G * d, self.gates.rows], dim=-1)
            q, k = q.view(B, T, H, A), k.view(B, T, G, A)
        else:
            q = self.q(x).view(B, T, H, d) * self.config.query_scale
            k, v, logits = self.k(x).view(B, T, G, d), self.v(x), self.gates.logits(x)
        if self.rotates:
            assert rotary is not None
            q, k = rotate(q, rotary).to(v.dtype), rotate(k, rotary).to(v.dtype)
        if self.config.redraw and self.training and torch.is_grad_enabled():
            phi_q.redraw()  # of a joint map, so that φ(k) has the same directions
        q = phi_q(q.transpose(1, 2), True).reshape(B, H, T, K).transpose(1, 2)
        k = phi_k(k.transpose(1, 2), False).reshape(B, G, T, K).transpose(1, 2)
        control = self.gates.parallel(logits, B, T)
        if self.config.delta:
            q, k = _unit(q), _unit(k)
        if control.entering is not None:
            k = k * control.entering.unsqueeze(-1)
        return q, k, v.view(B, T, G, d), control

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        q, k, v, control = self.features(x, rotary)
        S, z, guard = state["S"], state.get("z"), self.config.guard
        if not self.config.memory:
            o, S, z = chunked(q, k, v, S, z, guard, None, control.log_gate, control.beta)
        else:  # as if it had been read before the text, and taken out again behind it
            sums = self.memory.collect(self._maps[1]).to(S.dtype)
            S_0, z_0 = sums[..., :-1], sums[..., -1]
            o, S, z = chunked(q, k, v, S + S_0, None if z is None else z + z_0, guard)
            S, z = S - S_0, None if z is None else z - z_0
        return self._output(o.to(x.dtype), TORCH).unflatten(0, x.shape[:2]), _state(S, z)

    def statistics(self, x: Tensor, state: State, rotary: Rotary | None) -> dict[str, Tensor]:
        """Shares of features that are 0 for every token of the batch, and the smallest φ(q)·z, before the guard."""
        q, k, _, control = self.features(x, rotary)
        said = {
            "dead_queries": (q == 0).all(1).all(0).float().mean(),
            "dead_keys": (k == 0).all(1).all(0).float().mean(),
        }
        if self.config.normalizer == "z":
            z = state["z"].unsqueeze(-1)  # the state of a value that is always 1
            sums, _ = RECURRENCES[self.config.update_rule].parallel(
                q, k, torch.ones_like(k[..., :1]), z, control.log_gate
            )
            said["smallest_normalizer"] = sums.min()
        return said

    def _step_features(self, x: Any, rotary: Rotary | None, ops: TorchOps) -> tuple[Any, Any, Any, Control]:
        """x (B, D) -> what the update rule takes: φ(q), φ(k) and v, H·K, G·K and G·V numbers a row, and the gates."""
        q, k, v, logits = self._step_maps(x, rotary, ops)
        control = self.gates.step(logits, ops)
        if self.config.delta:
            q, k = _unit(self._by_head(q, self.heads, ops), ops), _unit(self._by_head(k, self.kv_heads, ops), ops)
        if control.entering is not None:
            k = ops.mul(self._by_head(k, self.kv_heads, ops), control.entering)
        return q, k, v, control

    def _by_head(self, x: Any, heads: int, ops: TorchOps) -> Any:
        return ops.reshape(x, (-1, heads, 1, self.config.feature_size))

    def _step_maps(self, x: Any, rotary: Rotary | None, ops: TorchOps) -> tuple[Any, Any, Any, Any]:
        """x (B, D) -> φ(q), φ(k), v and what the gates are computed from."""
        H, G, d, rows = self.heads, self.kv_heads, self.head_size, self.gates.rows
        phi_q, phi_k = self._maps
        if self.config.folded:
            A = phi_q.argument_size
            qkv = ops.sequences(ops.linear(x, self.qkv.weight, self.qkv.bias))
            q, k, v, *logits = ops.split(qkv, [H * A, G * A, G * d, *([rows] if rows else [])])
            if not phi_q.elementwise:
                q, k = ops.reshape(q, (-1, H, 1, A)), ops.reshape(k, (-1, G, 1, A))
            return phi_q(q, True, ops), phi_k(k, False, ops), v, logits[0] if rows else None
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, H + G, d))
        if self.rotates:
            assert rotary is not None
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [H, G], axis=1)
        if self.config.query_scale != 1.0:
            q = ops.mul(q, self.config.query_scale)
        q, k = ops.unsqueeze(q, 2), ops.unsqueeze(k, 2)
        return phi_q(q, True, ops), phi_k(k, False, ops), v, self.gates.logits(x, ops)

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        q, k, v, control = self._step_features(x, rotary, ops)
        guard, rule = self.config.guard, RECURRENCES[self.config.update_rule]
        if ops.damping != 1.0 and "z" in state:
            # numerator, denominator and eps alike; an eps that float16 rounds to 0 would guard nothing
            q, guard = ops.mul(q, ops.damping), dataclasses.replace(guard, eps=max(guard.eps * ops.damping, 2**-20))
        numerator, denominator, S, z = rule.step(
            q, k, v, state["S"], state.get("z"), control.log_gate, control.beta, ops
        )
        if self.config.memory:
            remembered, weight = read(q, self.memory.collect(self._maps[1], ops), ops)
            numerator = ops.add(numerator, remembered)
            denominator = None if z is None else ops.add(denominator, weight)
        o = numerator if z is None else ops.div(numerator, guarded(denominator, guard, ops))
        return self._output(o, ops), _state(S, z)

    def _output(self, o: Any, ops: TorchOps) -> Any:
        """What the heads give, H·V numbers a row in whatever axes end with V -> (rows, D)."""
        if self.config.normalizer in ("group_norm", "rms_norm"):
            o = self.norm(o, ops)
        o = ops.reshape(o, (-1, self.heads * self.head_size))
        return ops.linear(o, self.o.weight, self.o.bias)

    def state_spec(self) -> list[StateSpec]:
        G, K, V = self.kv_heads, self.config.feature_size, self.head_size
        S, z = StateSpec("S", "float32", (BATCH, G, K, V)), StateSpec("z", "float32", (BATCH, G, K))
        return [S, z] if self.config.normalizer == "z" else [S]

    def parallel_obstacle(self) -> str | None:
        return None  # but for `linear_attention`, each row is computed by itself

    def fold_obstacle(self) -> str | None:
        if self.rotates:
            return "positions are rotated between the projection and φ (positions='keep')"
        return None

    @torch.no_grad()
    def fold(self) -> Mixer:
        """W̃ = W_φ W, b̃ = b_φ + W_φ b for q and k (eq. 8), any scale of q inside; computed in float64."""
        assert self.fold_obstacle() is None
        phi_q, phi_k = self._maps
        parts = [
            _folded(self.q, phi_q, self.config.query_scale),
            _folded(self.k, phi_k, 1.0),
            (self.v.weight.double(), _bias(self.v)),
        ]
        if self.gates.rows:
            parts.append((self.gates.weight.double(), self.gates.offset.double()))
        folded = LinearMixer(self.model_config, dataclasses.replace(self.config, folded=True)).to(self.o.weight)
        folded.qkv.weight.copy_(torch.cat([weight for weight, _ in parts]))
        folded.qkv.bias.copy_(torch.cat([bias for _, bias in parts]))
        for name, module in self.named_children():
            if isinstance(module, FeatureMap):
                folded.get_submodule(name).take_over(module)  # type: ignore[operator]
            elif name in ("norm", "o"):
                folded.get_submodule(name).load_state_dict(module.state_dict())
        if self.config.memory:
            folded.memory.sums.copy_(self.memory.collect(phi_k)[0])
        return folded


def _state(S: Any, z: Any | None) -> State:
    return {"S": S} if z is None else {"S": S, "z": z}


def _unit(x: Any, ops: TorchOps = TORCH) -> Any:
    """x (…, K) divided by its length."""
    return ops.mul(ops.rms_norm(x, None, EPS), x.shape[-1] ** -0.5)


def _bias(projection: nn.Linear) -> Tensor:
    bias: Tensor | None = projection.bias
    if bias is None:
        return torch.zeros(projection.out_features, dtype=torch.float64, device=projection.weight.device)
    return bias.double()


def _folded(projection: nn.Linear, phi: FeatureMap, scale: float) -> tuple[Tensor, Tensor]:
    """Weight (heads·A, D) and bias (heads·A) of x -> W_φ · scale · (W x + b) + b_φ, the arguments of φ, float64."""
    weight, bias = projection.weight.double() * scale, _bias(projection) * scale
    affine = phi.affine()
    if affine is None:
        return weight, bias
    W_phi, b_phi = affine[0].double(), affine[1]  # (heads, d, A) and (heads, A)
    heads, d, _ = W_phi.shape
    weight = torch.einsum("hdk,hdD->hkD", W_phi, weight.view(heads, d, -1))
    bias = torch.einsum("hdk,hd->hk", W_phi, bias.view(heads, d))
    if b_phi is not None:
        bias = bias + b_phi.double()
    return weight.flatten(0, 1), bias.flatten()
