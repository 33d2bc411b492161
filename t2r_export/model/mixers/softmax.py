"""Softmax attention with an explicit cache: the teacher, and the layers that a hybrid keeps.

o_t = Σ_{s≤t} softmax_s(q_t·k_s / √d) v_s (Vaswani et al. 2017, eq. 1). Its state is the keys (rotated where the model
rotates) and values of every token so far: the one mixer whose state grows.

A persistent memory (Sukhbaatar et al. 2019, arXiv 1907.01470, eq. 9) is N trained keys and values beside those of the
tokens. They have no place in the text: a query that meets them is not rotated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.banded import MASKED
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.mixers.memory import Memory
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary, rotate
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
        self.memory = Memory(model.kv_heads, config.memory, d, d, 0, False) if config.memory else None

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        plain = q = self.q(x).view(B, T, self.heads, -1)
        k = self.k(x).view(B, T, self.kv_heads, -1)
        v = self.v(x).view(B, T, self.kv_heads, -1).transpose(1, 2)  # (B, G, T, d)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        q, k = q.transpose(1, 2).to(v.dtype), k.transpose(1, 2).to(v.dtype)
        k = torch.cat([state["k"].to(v.dtype), k], dim=2)  # (B, G, P + T, d)
        v = torch.cat([state["v"].to(v.dtype), v], dim=2)
        if self.memory is None:
            y = F.scaled_dot_product_attention(q, k, v, **_causal(T, k.shape[2], x.device), enable_gqa=True)
        else:
            y = self._with_memory(q, plain.transpose(1, 2), k, v, self.memory)
        return self.o(y.transpose(1, 2).reshape(B, T, -1)), {"k": k, "v": v}

    def _with_memory(self, q: Tensor, plain: Tensor, k: Tensor, v: Tensor, memory: Memory) -> Tensor:
        """Attention to the memory and to the tokens: q and the query as it is without rotation, (B, H, T, d)."""
        N, T, total = memory.k.shape[1], q.shape[2], k.shape[2]
        memory_k, memory_v = (part.to(v.dtype).expand(len(q), -1, -1, -1) for part in (memory.k, memory.v))
        # side by side, so that a token's key meets the rotated query, and a memory's key the plain one
        keys = torch.cat([F.pad(memory_k, (self.head_size, 0)), F.pad(k, (0, self.head_size))], 2)
        seen = torch.ones(T, N + total, dtype=torch.bool, device=q.device).tril(N + total - T)
        queries, values = torch.cat([q, plain.to(q.dtype)], -1), torch.cat([memory_v, v], 2)
        scale = self.head_size**-0.5
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale, enable_gqa=True)

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        G, R, d = self.kv_heads, self.heads // self.kv_heads, self.head_size
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, self.heads + G, d))
        plain = ops.split(both, [self.heads, G], axis=1)[0] if self.memory is not None else None
        if rotary is not None:
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [self.heads, G], axis=1)
        k, v = ops.by_head(k, G, d, state["k"]), ops.by_head(v, G, d, state["v"])  # (B, G, T, d)
        many = x.shape[0] != state["k"].shape[0]
        bias = ops.concat([ops.mul(ops.unseen(state["k"], k), MASKED)] * R, axis=0) if many else None  # (R·T, P + T)
        k, v = ops.concat([state["k"], k], axis=2), ops.concat([state["v"], v], axis=2)  # (B, G, P + T, d)
        # scaling q, not the scores: d numbers a head instead of P + T
        q = ops.by_head(ops.mul(q, d**-0.5), G, d, state["k"])  # (B, G, R·T, d)
        tokens = attend(q, ops.transpose(k, (0, 1, 3, 2)), v, ops, bias)
        y = tokens[0]
        if self.memory is not None:
            plain = ops.by_head(ops.mul(plain, d**-0.5), G, d, state["k"])
            key, value = ops.parameter(self.memory.k), ops.parameter(self.memory.v)
            y = together(tokens, attend(plain, ops.transpose(key, (0, 2, 1)), value, ops), ops)
        y = ops.by_row(y, R)
        return ops.linear(y, self.o.weight, self.o.bias), {"k": k, "v": v}

    def parallel_obstacle(self) -> str | None:
        return None

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.kv_heads, GROWING, self.head_size)
        return [StateSpec("k", "float32", shape), StateSpec("v", "float32", shape)]

    def fold_obstacle(self) -> str | None:
        return "softmax attention has no feature map to fold"


def attend(q: Any, keys: Any, values: Any, ops: TorchOps, bias: Any = None) -> tuple[Any, Any, Any]:
    """q (B, G, rows, d), keys (…, d, n), values (…, n, d) and what scores are changed by (rows, n) -> what they give
    (B, G, rows, d), scores and weights."""
    scores = ops.matmul(q, keys)
    if bias is not None:
        scores = ops.add(scores, bias)
    weights = ops.softmax(scores)  # (B, G, rows, n)
    return ops.matmul(weights, values), scores, weights


def together(first: tuple[Any, Any, Any], second: tuple[Any, Any, Any], ops: TorchOps) -> Any:
    """What one softmax over two sets of keys gives, from `attend` to each of them.

    A set's share is Σ exp(score) = exp(c) / w for its largest score c and largest weight w. So no sum over a cache that
    grows is taken apart, and the larger of the two c keeps both shares within range.
    """
    tops = [ops.largest(scores) for _, scores, _ in (first, second)]
    top = ops.largest(ops.concat(tops))
    shares = [
        ops.div(ops.exp(ops.sub(c, top)), ops.largest(weights))
        for c, (_, _, weights) in zip(tops, (first, second), strict=True)
    ]
    sums = [ops.mul(y, share) for (y, _, _), share in zip((first, second), shares, strict=True)]
    return ops.div(ops.add(*sums), ops.add(*shares))


def _causal(T: int, total: int, device: torch.device) -> dict[str, Any]:
    """Arguments for causal attention of T queries, the last of `total` keys. Without a past torch needs no mask."""
    if total == T:
        return {"is_causal": True}
    return {"attn_mask": torch.ones(T, total, dtype=torch.bool, device=device).tril(total - T)}
