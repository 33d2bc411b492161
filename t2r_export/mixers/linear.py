"""Linear attention with a learned ReLU feature map: T2R (Kasai et al. 2021, "Finetuning Pretrained Transformers into
RNNs", arXiv 2103.13076, eq. 4 to 8).

    φ(x) = relu(W_φ x + b_φ)      S_t = S_{t-1} + φ(k_t) v_tᵀ      z_t = z_{t-1} + φ(k_t)
    o_t = φ(q_t)ᵀ S_t / guard(φ(q_t)·z_t)

Unfolded, a layer holds the pretrained projections and a small map for each head. Folded, the map is inside one packed
projection from x to [φ's arguments of q | of k | v], which is what the exported graph computes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config import ModelConfig
from t2r_export.mixer_configs import Guard, LinearConfig
from t2r_export.mixers.base import Mixer, State
from t2r_export.ops import TORCH, TorchOps
from t2r_export.positions import Rotary, rotate
from t2r_runtime.signature import BATCH, StateSpec


class FeatureMap(nn.Module):
    """φ(x) = relu(W_φ x + b_φ), its own for every head."""

    def __init__(self, heads: int, head_size: int, feature_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, head_size, feature_size))  # W_φᵀ of each head
        self.bias = nn.Parameter(torch.zeros(heads, feature_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows of unit length in all directions: features start at the scale of q and k."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.bias)

    @torch.no_grad()
    def imitate(self, keys: FeatureMap) -> None:
        """Start as the maps of the key heads, each query head as its group: φ(q)·φ(k) is then large where q is near k,
        and training starts from an attention, not from noise (docs/quality.md has what it is worth)."""
        repeats = len(self.weight) // len(keys.weight)
        self.weight.copy_(keys.weight.repeat_interleave(repeats, 0))
        self.bias.copy_(keys.bias.repeat_interleave(repeats, 0))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, heads, d) -> (B, T, heads, K)."""
        return F.relu(torch.einsum("bthd,hdk->bthk", x, self.weight.to(x.dtype)) + self.bias)

    def step(self, x: Any, ops: TorchOps = TORCH) -> Any:
        """x (B, heads, d) -> (B, heads, 1, K)."""
        heads, _, size = self.weight.shape
        x = ops.matmul(ops.unsqueeze(x, 2), ops.parameter(self.weight))
        return ops.relu(ops.add(x, ops.reshape(ops.parameter(self.bias), (heads, 1, size))))


class LinearMixer(Mixer):
    """T2R attention, unfolded (q, k, v, phi_q, phi_k) or folded (qkv)."""

    config: LinearConfig

    def __init__(self, model: ModelConfig, config: LinearConfig) -> None:
        super().__init__(model, config)
        H, G, d, K = model.heads, model.kv_heads, model.head_size, config.feature_size
        self.model_config = model
        if config.folded:
            self.qkv = nn.Linear(model.width, (H + G) * K + G * d)
        else:
            self.q = nn.Linear(model.width, H * d, bias=model.qkv_bias)
            self.k = nn.Linear(model.width, G * d, bias=model.qkv_bias)
            self.v = nn.Linear(model.width, G * d, bias=model.qkv_bias)
            self.phi_q = FeatureMap(H, d, K)
            if not config.shared_features:
                self.phi_k = FeatureMap(G, d, K)
                self.phi_q.imitate(self.phi_k)
        self.o = nn.Linear(H * d, model.width, bias=model.output_bias)
        self.rotates = model.position == "rotary" and config.positions == "keep"

    @property
    def _maps(self) -> tuple[FeatureMap, FeatureMap]:
        return self.phi_q, self.phi_q if self.config.shared_features else self.phi_k

    def features(self, x: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, D) -> φ(q) (B, T, H, K), φ(k) (B, T, G, K), v (B, T, G, V)."""
        B, T, _ = x.shape
        H, G, d, K = self.heads, self.kv_heads, self.head_size, self.config.feature_size
        if self.config.folded:
            q, k, v = self.qkv(x).split([H * K, G * K, G * d], dim=-1)
            q, k = F.relu(q).view(B, T, H, K), F.relu(k).view(B, T, G, K)
            return q, k, v.view(B, T, G, d)
        q = self.q(x).view(B, T, H, d) * self.config.query_scale
        k = self.k(x).view(B, T, G, d)
        if self.rotates:
            assert rotary is not None
            q, k = rotate(q, rotary), rotate(k, rotary)
        phi_q, phi_k = self._maps
        return phi_q(q), phi_k(k), self.v(x).view(B, T, G, d)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        q, k, v = self.features(x, rotary)
        o, S, z = chunked(q, k, v, state["S"], state["z"], self.config.guard)
        return self.o(o.flatten(2).to(x.dtype)), {"S": S, "z": z}

    def statistics(self, x: Tensor, state: State, rotary: Rotary | None) -> dict[str, Tensor]:
        """Shares of features that are 0 for every token of the batch, and the smallest φ(q)·z, before the guard."""
        q, k, _ = self.features(x, rotary)
        z = (state["z"].unsqueeze(1) + k.cumsum(1)).repeat_interleave(self.heads // self.kv_heads, 2)  # (B, T, H, K)
        return {
            "dead_queries": (q == 0).all(1).all(0).float().mean(),
            "dead_keys": (k == 0).all(1).all(0).float().mean(),
            "smallest_normaliser": (q * z).sum(-1).min(),
        }

    def _step_features(self, x: Any, rotary: Rotary | None, ops: TorchOps) -> tuple[Any, Any, Any]:
        """x (B, D) -> φ(q), φ(k) and v: H·K, G·K and G·V numbers a row, head by head."""
        H, G, d, K = self.heads, self.kv_heads, self.head_size, self.config.feature_size
        if self.config.folded:
            qkv = ops.sequences(ops.linear(x, self.qkv.weight, self.qkv.bias))
            q, k, v = ops.split(qkv, [H * K, G * K, G * d])
            return ops.relu(q), ops.relu(k), v
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, H + G, d))
        if self.rotates:
            assert rotary is not None
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [H, G], axis=1)
        if self.config.query_scale != 1.0:
            q = ops.mul(q, self.config.query_scale)
        phi_q, phi_k = self._maps
        return phi_q.step(q, ops), phi_k.step(k, ops), v

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        q, k, v = self._step_features(x, rotary, ops)
        numerator, denominator, S, z = ops.linear_attention(q, k, v, state["S"], state["z"])
        o = ops.div(numerator, guarded(denominator, self.config.guard, ops))
        o = ops.reshape(o, (-1, self.heads * self.head_size))
        return ops.linear(o, self.o.weight, self.o.bias), {"S": S, "z": z}

    def state_spec(self) -> list[StateSpec]:
        G, K, V = self.kv_heads, self.config.feature_size, self.head_size
        return [StateSpec("S", "float32", (BATCH, G, K, V)), StateSpec("z", "float32", (BATCH, G, K))]

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
        folded = LinearMixer(self.model_config, dataclasses.replace(self.config, folded=True)).to(self.o.weight)
        folded.qkv.weight.copy_(torch.cat([weight for weight, _ in parts]))
        folded.qkv.bias.copy_(torch.cat([bias for _, bias in parts]))
        folded.o.load_state_dict(self.o.state_dict())
        return folded


def guarded(denominator: Any, guard: Guard, ops: TorchOps = TORCH) -> Any:
    """The denominator kept from zero, as the config says."""
    return ops.maximum(denominator, guard.eps) if guard.kind == "clamp" else ops.add(denominator, guard.eps)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, guard: Guard, chunk: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence over T tokens as matrix products over chunks: memory O(T·K·V/chunk + T·chunk), linear in T.

    Args:
        q: φ(q), (B, T, H, K). k: φ(k), (B, T, G, K). v: (B, T, G, V).
        S: (B, G, K, V) and z: (B, G, K), the state before the first token.
        chunk: tokens treated as one block; by default what `chunk_size` says.

    Returns:
        o (B, T, H, V) and the state after the last token, S and z. float32, or float64 where the input is: states
        only ever grow, and bfloat16 would stop counting at 256 equal terms.
    """
    B, T, H, K = q.shape
    G, V = v.shape[2:]
    R = H // G
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    with torch.autocast(q.device.type, enabled=False):
        C = min(chunk or chunk_size(K, V, R), T)
        pad = -T % C  # zero keys add nothing to the state, and the outputs of zero queries are cut off below
        q, k, v = (F.pad(t.to(wide), (0, 0, 0, 0, 0, pad)) if pad else t.to(wide) for t in (q, k, v))
        N = (T + pad) // C
        # one batched product a chunk and kv head: X = B·G·N of them
        q = q.view(B, N, C, G, R, K).permute(0, 3, 1, 4, 2, 5).reshape(-1, R * C, K)  # (X, R·C, K)
        k = k.view(B, N, C, G, K).permute(0, 3, 1, 2, 4).reshape(-1, C, K)  # (X, C, K)
        # z is the state of a value that is always 1: a last column of v and of S carries numerator and denominator
        v = F.pad(v, (0, 1), value=1.0).view(B, N, C, G, V + 1).permute(0, 3, 1, 2, 4).reshape(-1, C, V + 1)
        start = torch.cat([S, z.unsqueeze(-1)], dim=-1).to(wide).unsqueeze(2)  # (B, G, 1, K, V+1)
        added = torch.bmm(k.mT, v).view(B, G, N, K, V + 1)
        states = torch.cat([start, added], dim=2).cumsum(dim=2)  # (B, G, N+1, K, V+1): before each chunk, and the end
        # a product with a mask: tril of a batch is several times slower on the CPU
        causal = torch.ones(C, C, dtype=wide, device=q.device).tril().repeat(R, 1)  # (R·C, C)
        scores = torch.bmm(q, k.mT) * causal
        both = torch.baddbmm(torch.bmm(scores, v), q, states[:, :, :-1].reshape(-1, K, V + 1))  # this chunk, and before
        o = both[..., :-1] / guarded(both[..., -1:], guard)
        o = o.view(B, G, N, R, C, V).permute(0, 2, 4, 1, 3, 5).reshape(B, T + pad, H, V)
        end = states[:, :, -1]
        return o[:, :T], end[..., :-1], end[..., -1]


def chunk_size(K: int, V: int, R: int) -> int:
    """Tokens a chunk for which the scores (R·C a token) and the states (K·V/C a token) take about the same memory.

    A power of two from 16 to 128. Small models gain most from small chunks.
    """
    balanced = math.sqrt(K * V / R)
    return min(max(1 << math.ceil(math.log2(max(balanced, 1.0))), 16), 128)


def _bias(projection: nn.Linear) -> Tensor:
    bias: Tensor | None = projection.bias
    if bias is None:
        return torch.zeros(projection.out_features, dtype=torch.float64, device=projection.weight.device)
    return bias.double()


def _folded(projection: nn.Linear, phi: FeatureMap, scale: float) -> tuple[Tensor, Tensor]:
    """Weight (heads·K, D) and bias (heads·K) of x -> W_φ · scale · (W x + b) + b_φ, float64."""
    heads, d, _ = phi.weight.shape
    W = projection.weight.double().view(heads, d, -1)  # (heads, d, D)
    b = _bias(projection).view(heads, d)
    W_phi = phi.weight.double() * scale
    weight = torch.einsum("hdk,hdD->hkD", W_phi, W)
    bias = torch.einsum("hdk,hd->hk", W_phi, b) + phi.bias.double()
    return weight.flatten(0, 1), bias.flatten()
