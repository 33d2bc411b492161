"""Linear attention and a softmax window in one layer: what is near exactly, what is far in a sum (LoLCATs, Zhang et al.
2024, arXiv 2410.10254, section 3.2).

A query sees the last W tokens, itself among them, by softmax, and every older one by its features: a token enters S and
z at the step at which it leaves the window. With c the largest score in the window,

    sum    o = (γ Σ exp(q·k_i/√d - c) v_i + φ(q)ᵀS) / (γ Σ exp(q·k_i/√d - c) + φ(q)·z)     (their eq. 6)
    gate   o = g softmax(q·k/√d) v + (1 - g) φ(q)ᵀS / guard(φ(q)·z)

with a learned factor γ, or gate g, for each query head. Until a token leaves, S and z are zero and both are softmax
attention (the gate is open then). Keys are kept as the model turns them: φ of a key that leaves is what
`mixers.linear` has for it with positions='keep'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config import ModelConfig
from t2r_export.mixer_configs import HybridConfig
from t2r_export.mixers.banded import MASKED, absent, band_scores, chunk_length, from_rows, key_bands
from t2r_export.mixers.base import Mixer, State
from t2r_export.mixers.feature_maps import FEATURE_MAPS, FeatureMap, build_feature_map
from t2r_export.mixers.recurrences import RECURRENCES, guarded
from t2r_export.ops import TORCH, TorchOps
from t2r_export.positions import Rotary, rotate
from t2r_runtime.signature import BATCH, StateSpec

OPEN_GATE = 2.0  # where training of a gate starts: sigmoid(2) is 0.88, nearly the window alone


class HybridMixer(Mixer):
    """A softmax window over the last tokens, linear attention over all before them."""

    config: HybridConfig
    needed: Tensor  # (W)

    def __init__(self, model: ModelConfig, config: HybridConfig) -> None:
        super().__init__(model, config)
        H, G, d = model.heads, model.kv_heads, model.head_size
        self.q = nn.Linear(model.width, H * d, bias=model.qkv_bias)
        self.k = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.v = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.o = nn.Linear(H * d, model.width, bias=model.output_bias)
        linear = config.linear()
        self.joint = FEATURE_MAPS[config.feature_map].joint
        if self.joint:
            self.phi = build_feature_map(G, d, linear)
        else:
            self.phi_q, self.phi_k = build_feature_map(H, d, linear), build_feature_map(G, d, linear)
            self.phi_q.imitate(self.phi_k)
        # log γ, or what the gate is the sigmoid of
        self.merge = nn.Parameter(torch.full((H,), OPEN_GATE if config.merge == "gate" else 0.0))
        ages = torch.arange(config.window - 1, -1, -1, device="cpu").float()
        self.register_buffer("needed", ages, persistent=False)

    @property
    def _maps(self) -> tuple[FeatureMap, FeatureMap]:
        """Of q and of k."""
        return (self.phi, self.phi) if self.joint else (self.phi_q, self.phi_k)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        H, G, d, W = self.heads, self.kv_heads, self.head_size, self.config.window
        q, k, v = self.q(x).view(B, T, H, d), self.k(x).view(B, T, G, d), self.v(x).view(B, T, G, d)
        if rotary is not None:
            q, k = rotate(q, rotary).to(v.dtype), rotate(k, rotary).to(v.dtype)
        k = torch.cat([state["k"].to(v.dtype), k.transpose(1, 2)], 2)  # (B, G, W + T, d)
        v = torch.cat([state["v"].to(v.dtype), v.transpose(1, 2)], 2)
        S, z = state["S"], state["z"]
        gone = state["count"][:, None] + torch.arange(T, device=x.device) >= W  # (B, T): a token leaves the window
        phi_q, phi_k = self._maps
        features = phi_q(q.transpose(1, 2), True).reshape(B, H, T, -1).transpose(1, 2)
        leaving = phi_k(k[:, :, :T], False).reshape(B, G, T, -1).transpose(1, 2) * gone[:, :, None, None]
        ones = torch.ones_like(v[:, :, :T, :1])  # z is the state of a value that is always 1
        values = torch.cat([v[:, :, :T], ones], -1).transpose(1, 2)
        sums, after = RECURRENCES["linear"].parallel(features, leaving, values, torch.cat([S, z.unsqueeze(-1)], -1))
        C = chunk_length(W, T)
        scores = band_scores(q * d**-0.5, k, state["count"], W, C)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        both = weights.to(v.dtype) @ key_bands(torch.cat([v, torch.ones_like(v[..., :1])], -1), W, C)
        near = from_rows(both, T, C).to(sums.dtype)  # (B, T, H, d + 1), as `sums`
        y = self._merged(near.split([d, 1], -1), sums.split([d, 1], -1), gone[:, :, None, None])
        end = {"k": k[:, :, -W:], "v": v[:, :, -W:], "S": after[..., :-1], "z": after[..., -1]}
        return self.o(y.to(x.dtype).flatten(2)), {**end, "count": state["count"] + T}

    def _merged(self, window: Sequence[Any], sums: Sequence[Any], gone: Any, ops: TorchOps = TORCH) -> Any:
        """What exponentials and what features give, each with values and without, as one: (…, H, d), (…, H, 1)."""
        (near, weight), (far, far_weight) = window, sums
        merge = ops.reshape(ops.parameter(self.merge), (self.heads, 1))
        if self.config.merge == "sum":
            factor = ops.exp(merge)
            numerator = ops.add(ops.mul(near, factor), far)
            return ops.div(numerator, ops.add(ops.mul(weight, factor), far_weight))
        closed = ops.mul(ops.sigmoid(ops.mul(merge, -1.0)), gone)  # 1 - g, and 0 until there is something far
        far = ops.div(far, guarded(far_weight, self.config.guard, ops))
        return ops.add(ops.mul(ops.div(near, weight), ops.sub(1.0, closed)), ops.mul(far, closed))

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        H, G, d, W = self.heads, self.kv_heads, self.head_size, self.config.window
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, H + G, d))
        if rotary is not None:
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [H, G], axis=1)
        (old_k, k), (old_v, v) = (
            _moved(state[name], ops.reshape(new, (-1, G, 1, d)), ops) for name, new in (("k", k), ("v", v))
        )
        seen = ops.reshape(ops.cast(state["count"], "float32"), (-1, 1, 1, 1))
        gone = ops.sub(1.0, absent(float(W), seen, ops))
        phi_q, phi_k = self._maps
        K = self.config.feature_size
        features = phi_q(ops.unsqueeze(q, 2), True, ops)
        leaving = ops.mul(ops.reshape(phi_k(old_k, False, ops), (-1, G, 1, K)), gone)
        far, far_weight, S, z = ops.linear_attention(features, leaving, old_v, state["S"], state["z"])
        scores = ops.matmul(ops.reshape(ops.mul(q, d**-0.5), (-1, G, H // G, d)), ops.transpose(k, (0, 1, 3, 2)))
        scores = ops.add(scores, ops.mul(absent(ops.parameter(self.needed), seen, ops), MASKED))
        weights = ops.exp(ops.sub(scores, ops.largest(scores)))  # (B, G, R, W)
        near, weight = ops.matmul(weights, v), ops.mul(ops.mean(weights), float(W))
        parts = [ops.reshape(part, (-1, H, part.shape[-1])) for part in (near, weight, far, far_weight)]
        y = self._merged(parts[:2], parts[2:], ops.reshape(gone, (-1, 1, 1)), ops)
        y = ops.linear(ops.reshape(y, (-1, H * d)), self.o.weight, self.o.bias)
        return y, {"k": k, "v": v, "S": S, "z": z, "count": ops.add(state["count"], 1)}

    def state_spec(self) -> list[StateSpec]:
        G, K, d, W = self.kv_heads, self.config.feature_size, self.head_size, self.config.window
        shapes = {"k": (G, W, d), "v": (G, W, d), "S": (G, K, d), "z": (G, K)}
        buffers = [StateSpec(name, "float32", (BATCH, *shape)) for name, shape in shapes.items()]
        return [*buffers, StateSpec("count", "int32", (BATCH,))]

    def horizon(self) -> int:
        return self.config.window + 1

    def fold_obstacle(self) -> str | None:
        return "a key gets its features when it leaves the window"


def _moved(buffer: Any, new: Any, ops: TorchOps) -> tuple[Any, Any]:
    """The oldest entry of a buffer (B, G, W, d), and the buffer without it and with `new` (B, G, 1, d) at its end."""
    length = buffer.shape[2]
    if length == 1:
        return buffer, new
    oldest, rest = ops.split(buffer, [1, length - 1], axis=2)
    return oldest, ops.concat([rest, new], axis=2)
