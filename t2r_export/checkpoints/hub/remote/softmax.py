"""Softmax attention over all tokens, over a window, and over a window with linear attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.checkpoints.hub.remote.base import Options, Rope, Ropes, States, Tokens, repeated, rotated, split_heads
from t2r_export.checkpoints.hub.remote.linear import FeatureMaps, Gates, OutputGate, guarded, summed


def weighed(scores: Tensor, seen: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (B, H, T, N) and values (B, G, N, V) -> o (B, H, T, V) and the largest weight (B, H, T, 1).

    Args:
        seen: (B or 1, 1, T, N). sink: a logit per head whose value is 0 (OpenAI 2025, arXiv 2508.10925).
    """
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    if sink is not None:
        more = sink.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, more], -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return weights @ repeated(v, scores.shape[1]), weights.amax(-1, keepdim=True)


class Scores:
    """q·k · scale, capped."""

    def __init__(self, heads: Options) -> None:
        self.scale: float = heads["head_size"] ** -0.5 if heads["scale"] is None else heads["scale"]
        self.cap: float | None = heads["softcap"]

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        scores = (q * self.scale) @ repeated(k, q.shape[1]).mT
        return scores if self.cap is None else torch.tanh(scores / self.cap) * self.cap


class Softmax(nn.Module):
    """Softmax attention with a cache that grows."""

    rotates = scales = True

    def __init__(self, heads: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        self.kv_heads, self.size, self.scores = heads["kv_heads"], heads["head_size"], Scores(heads)
        self.sink = nn.Parameter(torch.zeros(heads["heads"])) if heads["sink"] else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys("kv", (self.kv_heads, 0, self.size))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: States, tokens: Tokens
    ) -> tuple[Tensor, States]:
        past, T = state["k"].shape[2], k.shape[2]
        k, v = (torch.cat([state[name], new.to(state[name].dtype)], 2) for name, new in (("k", k), ("v", v)))
        seen = torch.ones(T, past + T, dtype=torch.bool, device=q.device).tril(past)[None, None]
        slots = torch.arange(past, device=q.device)
        there = slots >= past - tokens.start[:, None]  # only the last `start` slots hold tokens
        new = torch.ones_like(tokens.position, dtype=torch.bool) if tokens.real is None else tokens.real
        seen = seen & torch.cat([there, new], 1)[:, None, None]
        o, _ = weighed(self.scores(q.to(k.dtype), k), seen, v, self.sink)
        return o.to(x.dtype), {"k": k, "v": v}


class Near:
    """Softmax over the last W tokens and the first s, the sinks; the states are their keys and values."""

    def __init__(self, heads: Options, rope: Rope | None) -> None:
        c = heads["inside"]
        self.window, self.sinks, self.rope = c["window"], c["sinks"], rope
        self.dilation, self.local = c.get("dilation", 1), c.get("local", 1)
        self.kv_heads, self.size, self.scores = heads["kv_heads"], heads["head_size"], Scores(heads)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        sizes = {"k": self.window, "v": self.window}
        sizes |= {"sink_k": self.sinks, "sink_v": self.sinks} if self.sinks else {}
        return {name: (self.kv_heads, size, self.size) for name, size in sizes.items()}

    def turned(self, x: Tensor, position: Tensor) -> Tensor:
        return x if self.rope is None else rotated(x, self.rope.at(position))

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, state: States, tokens: Tokens
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], States]:
        """o, the largest weight, the keys and values (B, G, T, ·) that leave the window, and the new states."""
        W, T, position = self.window, q.shape[2], tokens.position
        q, k, v = q.to(state["k"].dtype), tokens.masked(k).to(state["k"].dtype), tokens.masked(v).to(state["v"].dtype)
        keys, values = torch.cat([state["k"], k], 2), torch.cat([state["v"], v], 2)
        before = tokens.start[:, None] - W + torch.arange(W, device=q.device)
        places = torch.cat([before, position], 1)  # (B, W + T); negative: no token
        distance = position[:, :, None] - places[:, None]
        seen = (distance >= 0) & (distance < W) & (places >= self.sinks)[:, None]
        seen = seen & ((distance < self.local) | (distance % self.dilation == 0))
        scores = self.scores(self.turned(q, position), self.turned(keys, places))
        after = {"k": keys[:, :, T:], "v": values[:, :, T:]}
        seen_values = values
        if self.sinks:
            slots = torch.arange(self.sinks, device=q.device)
            here = (slots[:, None] == position[:, None]).to(k.dtype)[:, None]  # (B, 1, s, T)
            free = 1.0 - here.amax(-1, keepdim=True)
            after |= {name: state[name] * free + here @ new for name, new in (("sink_k", k), ("sink_v", v))}
            first = self.turned(after["sink_k"], slots[None])
            of_sinks = self.scores(self.turned(q, position.clamp(max=W + self.sinks - 1)), first)
            scores, seen_values = torch.cat([of_sinks, scores], -1), torch.cat([after["sink_v"], values], 2)
            seen = torch.cat([slots <= position[:, :, None], seen], -1)
        o, largest = weighed(scores, seen[:, None], seen_values, sink)
        return o, largest, (keys[:, :, :T], values[:, :, :T]), after


class Window(nn.Module):
    """A sliding window with sinks."""

    scales = True

    def __init__(self, heads: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        self.rotates = heads["qk_norm_after"]
        self.near = Near(heads, None if self.rotates else ropes[0])
        self.sink = nn.Parameter(torch.zeros(heads["heads"])) if heads["sink"] else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self.near.shapes()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: States, tokens: Tokens
    ) -> tuple[Tensor, States]:
        o, _, _, after = self.near(q, k, v, self.sink, state, tokens)
        return o.to(x.dtype), after


class Hybrid(nn.Module):
    """Softmax over a window, and linear attention to tokens that have left it."""

    scales = True

    def __init__(self, heads: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        c = self.options = heads["inside"]
        H, G, d = heads["heads"], heads["kv_heads"], heads["head_size"]
        self.rotates, self.rope, self.full = c["positions"] == "keep", ropes[1], c["window"] + c["sinks"]
        self.near = Near(heads, None if self.rotates else ropes[0])
        self.maps, self.gates = FeatureMaps(H, G, d, c), Gates(width, G, c)
        self.merge = nn.Parameter(torch.zeros(H))
        if c["merge"] == "token":
            self.merge_weight = nn.Parameter(torch.zeros(H, width))
        if c["output_gate"]:
            self.output_gate = OutputGate(width, H * d)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        G, K, V = self.near.kv_heads, self.options["feature_size"], self.near.size
        return {**self.near.shapes(), "S": (G, K, V), "z": (G, K)}

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: States, tokens: Tokens
    ) -> tuple[Tensor, States]:
        near, largest, (k, v), after = self.near(q, k, v, None, state, tokens)
        gone = (tokens.position >= self.full)[:, None, :, None].to(near.dtype)  # the leaving token is real and no sink
        maps, window = self.maps, self.options["window"]
        q = maps.q(maps.q.arguments(q.to(near.dtype)))
        k = tokens.masked(maps.of_keys(maps.of_keys.arguments(k)) * gone)
        log_gate, _, _ = self.gates(x)
        log_gate = None if log_gate is None else tokens.masked(log_gate)
        turned_q, turned_k = q, k
        if self.rope is not None:  # leaving keys are W tokens older: both positions + W
            turned_q = rotated(q, tokens.rotation(self.rope, window))
            turned_k = rotated(k, tokens.rotation(self.rope))
        far, after["S"] = summed(turned_q, turned_k, v, state["S"], log_gate)
        weight, z = summed(q, k, torch.ones_like(v[..., :1]), state["z"][..., None], log_gate)
        after["z"] = z[..., 0]
        merge = self.merge.to(near.dtype).view(1, -1, 1, 1)
        if self.options["merge"] == "token":
            merge = merge + split_heads(F.linear(x, self.merge_weight).to(near.dtype), len(self.merge))
        if self.options["merge"] == "sum":
            factor = merge.exp() / largest  # the sum of exp(score - maximum) is 1 / largest
            o = (near * factor + far) / (factor + weight)
        else:
            closed = torch.sigmoid(-merge) * gone
            o = near * (1.0 - closed) + far / guarded(weight, self.options["guard"]) * closed
        o = o.to(x.dtype)
        return (self.output_gate(o, x) if self.options["output_gate"] else o), after
