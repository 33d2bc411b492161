"""Update rules for tests: random tensors whose sizes are all different, and the token-by-token definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.model.ops import Erase

B, KEY_HEADS, HEADS, K, V = 2, 3, 6, 5, 4  # batch; key heads; heads of values and state; head sizes
DECAYS = {"weak": 1e-3, "middling": 1.0, "strong": 40.0, "to nothing": 2000.0}  # largest -log g


@dataclass(frozen=True)
class Rule:
    """A rule's inputs beside q, k, v and S."""

    decay: str = ""  # "", "head" or "channel"
    delta: bool = False
    erase: bool = False


RULES = {
    "linear": Rule(),
    "gated": Rule("head"),  # Mamba-2
    "gated, channel": Rule("channel"),  # GLA
    "delta": Rule(delta=True),
    "gated_delta": Rule("head", delta=True),  # gated delta nets
    "gated_delta, channel": Rule("channel", delta=True),  # KDA
    "erase": Rule(erase=True),
    "erase, head": Rule("head", erase=True),
    "erase, channel": Rule("channel", erase=True),  # RWKV-7
}
# heads of q and k: one per value head, one per two value heads, and fewer key heads than query heads
SHARED = {"own": (HEADS, HEADS), "shared": (KEY_HEADS, KEY_HEADS), "keys": (HEADS, KEY_HEADS), "grouped": (12, HEADS)}


def inputs(rule: str, heads: str, T: int, decay: str = "middling", seed: int = 0) -> dict[str, Any]:
    """The arguments of `Ops.linear_attention` without z, float64: unit keys, some gates nearly open."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    asked, (of_q, of_k) = RULES[rule], SHARED[heads]
    k = F.normalize(draw(B, of_k, T, K).relu() + 0.1, dim=-1)
    found: dict[str, Any] = {"q": draw(B, of_q, T, K), "k": k, "v": draw(B, HEADS, T, V), "S": draw(B, HEADS, K, V)}
    found["z"] = None
    if asked.decay:
        share = torch.rand(B, HEADS, T, K if asked.decay == "channel" else 1, generator=generator, dtype=torch.float64)
        found["log_gate"] = -DECAYS[decay] * share**4
    if asked.delta:
        found["beta"] = draw(B, HEADS, T, 1).sigmoid()
    if asked.erase:
        read = F.normalize(draw(B, HEADS, T, K), dim=-1)
        found["erase"] = Erase(read, -read * draw(B, HEADS, T, K).sigmoid())
    return found


def definition(given: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """o (B, H, T, V) and the final S, by a loop over tokens and heads."""
    q, k, v, S = (given[name].double().numpy() for name in ("q", "k", "v", "S"))
    log_gate, beta, erase = (given.get(name) for name in ("log_gate", "beta", "erase"))
    S, T, heads = S.copy(), v.shape[2], max(q.shape[1], v.shape[1])
    o = np.zeros((len(v), heads, T, v.shape[3]))
    for b, t in np.ndindex(len(v), T):
        for g in range(v.shape[1]):
            key, value = k[b, g * k.shape[1] // v.shape[1], t], v[b, g, t]
            if log_gate is not None:
                gate = log_gate.double().expand(len(v), -1, T, -1)[b, g, t].exp().numpy()
                S[b, g] = gate[:, None] * S[b, g]  # one gate, or one per key channel
            if beta is not None:
                S[b, g] += beta[b, g, t].item() * np.outer(key, value - S[b, g].T @ key)
                continue
            if erase is not None:
                read, write = (x[b, g, t].double().numpy() for x in erase)
                S[b, g] += np.outer(write, S[b, g].T @ read)
            S[b, g] += np.outer(key, value)
        for h in range(heads):
            o[b, h, t] = S[b, h * v.shape[1] // heads].T @ q[b, h * q.shape[1] // heads, t]
    return o, S


def mapped(given: dict[str, Any], change: Any) -> dict[str, Any]:
    """Apply `change` to every tensor."""
    return {
        name: Erase(*map(change, x)) if isinstance(x, Erase) else None if x is None else change(x)
        for name, x in given.items()
    }


def tokens(given: dict[str, Any], part: slice) -> dict[str, Any]:
    """The arguments of a slice of tokens, with the same initial state."""
    return mapped(given, lambda x: x[:, :, part]) | {"S": given["S"]}
