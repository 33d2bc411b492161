"""Linear attention: feature maps, gates, sums over tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.checkpoints.hub.remote.base import (
    ACTIVATIONS,
    EPS,
    Norm,
    Options,
    Ropes,
    ShortConvolution,
    States,
    Tokens,
    merge_heads,
    repeated,
    rotated,
    split_heads,
    wide,
)


class FeatureMap(nn.Module):
    """φ of the heads of q or of k: an affine part, if the map has one, and an activation."""

    def __init__(self, heads: int, size: int, options: Options) -> None:
        super().__init__()
        self.kind, self.size = options["feature_map"], options["feature_size"]
        sizes = {"relu": self.size, "relu2": self.size, "hedgehog": self.size // 2}
        self.argument_size = sizes.get(self.kind, size)
        if self.kind in sizes:
            self.weight = nn.Parameter(torch.zeros(heads, size, self.argument_size))
        if self.kind in ("relu", "relu2"):
            self.bias = nn.Parameter(torch.zeros(heads, self.argument_size))

    def arguments(self, x: Tensor) -> Tensor:
        x = torch.matmul(x, self.weight) if hasattr(self, "weight") else x
        return x + self.bias[:, None] if hasattr(self, "bias") else x

    def forward(self, x: Tensor) -> Tensor:
        """Arguments (B, heads, T, ·) -> features (B, heads, T, K)."""
        if self.kind in ("relu", "relu2"):
            return ACTIVATIONS[self.kind](x)
        if self.kind == "elu":
            return F.elu(x) + 1.0
        if self.kind == "hedgehog":
            return torch.cat([x.softmax(-1), (-x).softmax(-1)], -1)
        r = F.relu(torch.cat([x, -x], -1))  # dpfp
        shifts = range(1, self.size // r.shape[-1] + 1)
        features = torch.cat([r * r.roll(-shift, -1) for shift in shifts], -1)
        return features / (features.sum(-1, keepdim=True) + EPS)


class FeatureMaps(nn.Module):
    def __init__(self, heads: int, kv_heads: int, size: int, options: Options) -> None:
        super().__init__()
        self.q = FeatureMap(heads, size, options)
        if not options.get("shared_features"):
            self.k = FeatureMap(kv_heads, size, options)

    @property
    def of_keys(self) -> FeatureMap:
        return self.k if hasattr(self, "k") else self.q


class Gates(nn.Module):
    """log g (B, G, T, 1 or K) and β (B, G, T, 1), and 1 - g if it weights the new token."""

    def __init__(self, width: int, heads: int, options: Options) -> None:
        super().__init__()
        self.heads, self.kind, self.delta = heads, options["gate"], "delta" in options["update_rule"]
        self.average = options.get("moving_average", False)
        of_gate = {"data": heads, "pair": heads * options["feature_size"] // 2}.get(self.kind, 0)
        self.sizes = [of_gate, heads * self.delta]
        if rows := sum(self.sizes):
            self.weight, self.offset = nn.Parameter(torch.zeros(rows, width)), nn.Parameter(torch.zeros(rows))

    def forward(self, x: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        log_gate = beta = entering = None
        if hasattr(self, "weight"):
            logits = (F.linear(x, self.weight) + self.offset).to(wide(x)).split(self.sizes, -1)
            if self.sizes[0]:
                u = split_heads(logits[0], self.heads)
                u = torch.cat([u, u], -1) if self.kind == "pair" else u
                log_gate, entering = F.logsigmoid(u), F.logsigmoid(-u).exp()  # 1 - g is inexact for g near 1
            if self.delta:
                beta = split_heads(logits[-1], self.heads).sigmoid()
        if self.kind == "fixed":
            left = 2.0 ** (-5 - torch.arange(self.heads, dtype=torch.float64, device=x.device))
            left = left.view(1, -1, 1, 1).expand(len(x), -1, x.shape[1], -1)
            log_gate, entering = torch.log1p(-left).to(wide(x)), left.to(wide(x))
        return log_gate, beta, entering if self.average else None


class OutputGate(nn.Module):
    """o ⊙ 2 sigmoid(W x + b)."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.zeros(rows, width)), nn.Parameter(torch.zeros(rows))

    def forward(self, o: Tensor, x: Tensor) -> Tensor:
        gate = 2.0 * torch.sigmoid(F.linear(x, self.weight) + self.offset)
        return o * split_heads(gate, o.shape[1])


def summed(q: Tensor, k: Tensor, v: Tensor, S: Tensor, log_gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """φ(q)ᵀS for T tokens, and the new S; φ(q)·z if v is ones.

    Args:
        q: (B, H, T, K). k: (B, G, T, K). v: (B, G, T, V). S: (B, G, K, V). log_gate: (B, G, T, 1 or K) or None.
    """
    if log_gate is not None and log_gate.shape[-1] > 1:
        return stepped(q, k, v, S, log_gate)
    H = q.shape[1]
    scores = (q @ repeated(k, H).mT).tril()
    o = q @ repeated(S, H)
    if log_gate is None:
        return o + scores @ repeated(v, H), S + k.mT @ v
    L = log_gate.double().cumsum(2)  # float64: differences of long sums
    since = (L - L.mT).tril().exp().to(q.dtype)  # (B, G, T, T)
    from_start, to_end = L.exp().to(q.dtype), (L[:, :, -1:] - L).exp().to(q.dtype)
    o = repeated(from_start, H) * o + (scores * repeated(since, H)) @ repeated(v, H)
    return o, from_start[:, :, -1:] * S + (k * to_end).mT @ v


def stepped(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, log_gate: Tensor | None, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Token by token: S_t = g S_{t-1} + k vᵀ, or with β, g S_{t-1} + β k (v - g S_{t-1}ᵀ k)ᵀ. Arguments as in
    `summed`."""
    outputs = []
    for t in range(q.shape[2]):
        one = slice(t, t + 1)
        S = S if log_gate is None else log_gate[:, :, one].exp().mT * S
        new = v[:, :, one] if beta is None else beta[:, :, one] * (v[:, :, one] - k[:, :, one] @ S)
        S = S + k[:, :, one].mT @ new
        outputs.append(q[:, :, one] @ repeated(S, q.shape[1]))
    return torch.cat(outputs, 2), S


def guarded(denominator: Tensor, guard: Options) -> Tensor:
    return denominator.clamp(min=guard["eps"]) if guard["kind"] == "clamp" else denominator + guard["eps"]


class Linear(nn.Module):
    """Linear attention."""

    def __init__(self, heads: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        c = self.options = heads["inside"]
        self.heads, self.kv_heads, self.size = heads["heads"], heads["kv_heads"], heads["head_size"]
        self.rotates, self.rope = c["positions"] == "keep", ropes[1]
        self.scales = self.rotates and ropes[0] is not None
        self.maps = FeatureMaps(self.heads, self.kv_heads, self.size, c)
        self.gates = Gates(width, self.kv_heads, c)
        kind = {"group_norm": "layer", "rms_norm": "rms"}.get(c["normalizer"])
        self.norm = Norm(None if kind is None else {"kind": kind, "eps": heads["norm_eps"]}, self.size)
        if c["output_gate"]:
            self.output_gate = OutputGate(width, self.heads * self.size)
        if c["conv"]:
            self.conv = ShortConvolution(c["conv"], sum(self.channels))

    @property
    def channels(self) -> list[int]:
        """Channels of the convolution: arguments of φ(q) and φ(k), and v."""
        of_q, of_k = self.maps.q.argument_size, self.maps.of_keys.argument_size
        return [self.heads * of_q, self.kv_heads * of_k, self.kv_heads * self.size]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        G, K, V = self.kv_heads, self.options["feature_size"], self.size
        shapes: dict[str, tuple[int, ...]] = {"S": (G, K, V)}
        if self.options["normalizer"] == "z":
            shapes["z"] = (G, K)
        return shapes | ({"conv": self.conv.shape()} if self.options["conv"] else {})

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: States, tokens: Tokens
    ) -> tuple[Tensor, States]:
        after: States = {}
        q, k = self.maps.q.arguments(q * self.options["query_scale"]), self.maps.of_keys.arguments(k)
        if self.options["conv"]:
            rows = torch.cat([merge_heads(part) for part in (q, k, v)], -1)
            rows, after["conv"] = self.conv(rows, state["conv"], tokens)
            counts = (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = (split_heads(*pair) for pair in zip(rows.split(self.channels, -1), counts, strict=True))
        S = state["S"]
        q, k, v = self.maps.q(q).to(S.dtype), self.maps.of_keys(k).to(S.dtype), v.to(S.dtype)
        log_gate, beta, entering = self.gates(x)
        if beta is not None:
            q, k = (F.rms_norm(part, part.shape[-1:], None, EPS) * part.shape[-1] ** -0.5 for part in (q, k))
        k = tokens.masked(k if entering is None else k * entering)
        log_gate = None if log_gate is None else tokens.masked(log_gate)
        turn = None if self.rope is None else tokens.rotation(self.rope)
        turned_q, turned_k = (q, k) if turn is None else (rotated(q, turn), rotated(k, turn))
        if beta is not None:
            o, after["S"] = stepped(turned_q, turned_k, v, S, log_gate, beta)
        else:
            o, after["S"] = summed(turned_q, turned_k, v, S, log_gate)
        if "z" in state:
            weight, z = summed(q, k, torch.ones_like(v[..., :1]), state["z"][..., None], log_gate)
            o, after["z"] = o / guarded(weight, self.options["guard"]), z[..., 0]
        o = self.norm(o.to(x.dtype))
        return (self.output_gate(o, x) if self.options["output_gate"] else o), after
