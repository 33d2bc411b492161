"""Softmax attention with an explicit cache: the teacher, and the layers that a hybrid keeps.

o_t = Σ_{s≤t} softmax_s(q_t·k_s / √d) v_s (Vaswani et al. 2017, eq. 1). Its state is the keys (rotated where the model
rotates) and values of every token so far: the one mixer whose state grows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config import ModelConfig
from t2r_export.mixer_configs import SoftmaxConfig
from t2r_export.mixers.base import Mixer, State
from t2r_export.ops import TORCH, TorchOps
from t2r_export.positions import Rotary, rotate
from t2r_runtime.signature import BATCH, GROWING, StateSpec


class SoftmaxMixer(Mixer):
    """Causal multi-head attention with grouped key/value heads."""

    def __init__(self, model: ModelConfig, config: SoftmaxConfig) -> None:
        super().__init__(model, config)
        d = model.head_size
        self.q = nn.Linear(model.width, model.heads * d, bias=model.qkv_bias)
        self.k = nn.Linear(model.width, model.kv_heads * d, bias=model.qkv_bias)
        self.v = nn.Linear(model.width, model.kv_heads * d, bias=model.qkv_bias)
        self.o = nn.Linear(model.heads * d, model.width, bias=model.output_bias)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.heads, -1)
        k = self.k(x).view(B, T, self.kv_heads, -1)
        v = self.v(x).view(B, T, self.kv_heads, -1).transpose(1, 2)  # (B, G, T, d)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        q, k = q.transpose(1, 2).to(v.dtype), k.transpose(1, 2).to(v.dtype)
        k = torch.cat([state["k"].to(v.dtype), k], dim=2)  # (B, G, P + T, d)
        v = torch.cat([state["v"].to(v.dtype), v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, **_causal(T, k.shape[2], x.device), enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(B, T, -1)), {"k": k, "v": v}

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        G, R, d = self.kv_heads, self.heads // self.kv_heads, self.head_size
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, self.heads + G, d))
        if rotary is not None:
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [self.heads, G], axis=1)
        k = ops.concat([state["k"], ops.reshape(k, (-1, G, 1, d))], axis=2)  # (B, G, T+1, d)
        v = ops.concat([state["v"], ops.reshape(v, (-1, G, 1, d))], axis=2)
        # scaling q, not the scores: d numbers a head instead of T
        q = ops.reshape(ops.mul(q, d**-0.5), (-1, G, R, d))
        weights = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))))  # (B, G, R, T+1)
        y = ops.reshape(ops.matmul(weights, v), (-1, self.heads * d))
        return ops.linear(y, self.o.weight, self.o.bias), {"k": k, "v": v}

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.kv_heads, GROWING, self.head_size)
        return [StateSpec("k", "float32", shape), StateSpec("v", "float32", shape)]

    def fold_obstacle(self) -> str | None:
        return "softmax attention has no feature map to fold"


def _causal(T: int, total: int, device: torch.device) -> dict[str, Any]:
    """Arguments for causal attention of T queries, the last of `total` keys. Without a past torch needs no mask."""
    if total == T:
        return {"is_causal": True}
    return {"attn_mask": torch.ones(T, total, dtype=torch.bool, device=device).tril(total - T)}
