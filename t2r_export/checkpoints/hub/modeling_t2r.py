"""A decoder that t2r-export made, for transformers: it needs torch and transformers, and nothing else.

`t2r save MODEL FOLDER --as transformers` puts this file beside the weights. Names of weights and states are those of
t2r-export and its graphs. Linear attention and windows have states of one size, however long the text; softmax layers
have a cache that grows. Licence: Apache-2.0.

    S_t = g_t S_{t-1} + φ(k_t) v_tᵀ      z_t = g_t z_{t-1} + φ(k_t)      o_t = φ(q_t)ᵀ S_t / guard(φ(q_t)·z_t)

(Kasai et al. 2021, arXiv 2103.13076, eq. 4 to 8; gates: Peng et al. 2021, arXiv 2103.02143; rotation of features: Su et
al. 2021, arXiv 2104.09864, eq. 19; hybrid layers: Zhang et al. 2024, arXiv 2410.10254; sinks: Xiao et al. 2023, arXiv
2309.17453). Letters: batch B, tokens T, heads H of queries and G of keys and values, sizes d, K (features) and V.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

CHUNK = 128  # tokens that are computed at once: memory is that of so many, whatever the length
EPS = 1e-6  # of mean squares and feature sums
Options = Mapping[str, Any]
States = dict[str, Tensor]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_10": lambda x: F.gelu(x).clamp(-10.0, 10.0),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "mish": F.mish,
}


class T2RConfig(PretrainedConfig):
    """The layers as t2r-export describes them (`t2r["config"]`), and the frequencies of their rotations."""

    model_type = "t2r"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(self, t2r: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.t2r = t2r or {}
        super().__init__(**kwargs)


class T2RCache:
    """The states of a text by name (`S.0`, `z.0`, `k.1` …), as t2r-export's graphs have them."""

    is_compileable = False

    def __init__(self, states: States) -> None:
        self.states, self.tokens = states, 0  # padding is counted among the tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that were read."""
        return self.tokens

    def nbytes(self) -> int:
        """Bytes of all states."""
        return sum(state.nbytes for state in self.states.values())

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The states of these texts, for beams."""
        self.states = {name: state.index_select(0, beam_idx) for name, state in self.states.items()}

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each text so often."""
        self.states = {name: state.repeat_interleave(repeats, 0) for name, state in self.states.items()}

    def crop(self, tokens_to_remove: int) -> None:
        raise NotImplementedError("a recurrent state forgets no tokens: keep a copy of the states before them")


class Tokens:
    """T tokens of each text, and what depends on their positions alone.

    Args:
        start: (B,), tokens that were read before, without padding.
        real: (B, T), false for padding; None: there is none.
    """

    def __init__(self, ids: Tensor, start: Tensor, real: Tensor | None) -> None:
        self.start, self.real = start, real
        counted = torch.ones_like(ids) if real is None else real.long()
        self.after = start + counted.sum(1)
        position = start[:, None] + counted.cumsum(1) - 1
        self.position = position if real is None else position.masked_fill(~real, -1)  # (B, T)
        self._rotations: dict[Any, tuple[Tensor, Tensor]] = {}

    def masked(self, x: Tensor) -> Tensor:
        """x (B, heads, T, ·), 0 for padding."""
        return x if self.real is None else x * self.real[:, None, :, None]

    def rotation(self, rope: Rope, ahead: int = 0) -> tuple[Tensor, Tensor]:
        """cos and sin at the positions, shifted by `ahead`; shared by all layers."""
        key = (id(rope), ahead)
        if key not in self._rotations:
            self._rotations[key] = rope.at(self.position + ahead)
        return self._rotations[key]


class Rope:
    """Rotations by position · frequency."""

    def __init__(self, frequencies: list[float], magnitude: float) -> None:
        self.frequencies, self.magnitude = frequencies, magnitude

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (B, N) -> cos and sin (B, 1, N, F). Angles are float64, so that large ones are exact."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float64, device=position.device)
        angles = position[:, None, :, None].double() * frequencies
        return (angles.cos() * self.magnitude).float(), (angles.sin() * self.magnitude).float()


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """x (B, heads, T, d): of its first 2F numbers the first half rotates against the second."""
    cos, sin = rotation
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, T, heads · d) -> (B, heads, T, d)."""
    apart: Tensor = x.unflatten(-1, (heads, -1))
    return apart.transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, d) -> (B, T, heads · d)."""
    return x.transpose(1, 2).flatten(2)


def repeated(x: Tensor, heads: int) -> Tensor:
    """Heads (B, G, …) for as many queries as share each."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


class Norm(nn.Module):
    """Layer norm, RMS norm, or without options the identity."""

    def __init__(self, options: Options | None, size: int) -> None:
        super().__init__()
        self.eps = 0.0 if options is None else options["eps"]
        self.weight = None if options is None else nn.Parameter(torch.ones(size))
        layer = options is not None and options["kind"] == "layer"
        self.bias = nn.Parameter(torch.zeros(size)) if layer else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            return x
        if self.bias is None:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution whose state is its last inputs."""

    def __init__(self, taps: int, channels: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def shape(self) -> tuple[int, ...]:
        return 1, len(self.weight) - 1, self.weight.shape[1]

    def forward(self, x: Tensor, past: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """x (B, T, channels) and the state (B, 1, taps - 1, channels) -> the same shapes."""
        joined = torch.cat([past, tokens.masked(x[:, None].to(past.dtype))], 2)
        T = x.shape[1]
        y = torch.stack([joined[:, 0, j : j + T] * w for j, w in enumerate(self.weight)]).sum(0)
        return (y if self.bias is None else y + self.bias).to(x.dtype), joined[:, :, T:]


# -- linear attention


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
    """log g (B, G, T, 1 or K) and β (B, G, T, 1), and 1 - g where a new token is weighted by it."""

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


def wide(x: Tensor) -> torch.dtype:
    """States are at least float32: sums in bfloat16 stop growing after 256 equal terms."""
    return torch.promote_types(x.dtype, torch.float32)


def summed(q: Tensor, k: Tensor, v: Tensor, S: Tensor, log_gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """φ(q)ᵀS for T tokens, and S after; with ones for v it is φ(q)·z.

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
    L = log_gate.double().cumsum(2)  # of long sums differences are taken
    since = (L - L.mT).tril().exp().to(q.dtype)  # (B, G, T, T)
    from_start, to_end = L.exp().to(q.dtype), (L[:, :, -1:] - L).exp().to(q.dtype)
    o = repeated(from_start, H) * o + (scores * repeated(since, H)) @ repeated(v, H)
    return o, from_start[:, :, -1:] * S + (k * to_end).mT @ v


def stepped(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, log_gate: Tensor | None, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Token by token: S_t = g S_{t-1} + k vᵀ, or with a rate g S_{t-1} + β k (v - g S_{t-1}ᵀ k)ᵀ. Arguments as of
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


Ropes = tuple["Rope | None", "Rope | None"]  # of q and k, and of features


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
        """Of the convolution: arguments of φ(q) and φ(k), and v."""
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


# -- softmax


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
        there = slots >= past - tokens.start[:, None]  # what was read before ends with so many tokens
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
        """o, the largest weight, the keys and values (B, G, T, ·) that leave the window, and the states after."""
        W, T, position = self.window, q.shape[2], tokens.position
        q, k, v = q.to(state["k"].dtype), tokens.masked(k).to(state["k"].dtype), tokens.masked(v).to(state["v"].dtype)
        keys, values = torch.cat([state["k"], k], 2), torch.cat([state["v"], v], 2)
        before = tokens.start[:, None] - W + torch.arange(W, device=q.device)
        places = torch.cat([before, position], 1)  # (B, W + T); below 0 there is no token
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
    """Softmax over a window, and linear attention to what has left it."""

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

    def shapes(self) -> dict[str, tuple[int, ...]]:
        G, K, V = self.near.kv_heads, self.options["feature_size"], self.near.size
        return {**self.near.shapes(), "S": (G, K, V), "z": (G, K)}

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: States, tokens: Tokens
    ) -> tuple[Tensor, States]:
        near, largest, (k, v), after = self.near(q, k, v, None, state, tokens)
        gone = (tokens.position >= self.full)[:, None, :, None].to(near.dtype)  # what leaves exists and is no sink
        maps, window = self.maps, self.options["window"]
        q = maps.q(maps.q.arguments(q.to(near.dtype)))
        k = tokens.masked(maps.of_keys(maps.of_keys.arguments(k)) * gone)
        log_gate, _, _ = self.gates(x)
        log_gate = None if log_gate is None else tokens.masked(log_gate)
        turned_q, turned_k = q, k
        if self.rope is not None:  # W tokens apart, and both W ahead
            turned_q = rotated(q, tokens.rotation(self.rope, window))
            turned_k = rotated(k, tokens.rotation(self.rope))
        far, after["S"] = summed(turned_q, turned_k, v, state["S"], log_gate)
        weight, z = summed(q, k, torch.ones_like(v[..., :1]), state["z"][..., None], log_gate)
        after["z"] = z[..., 0]
        merge = self.merge.to(near.dtype).view(1, -1, 1, 1)
        if self.options["merge"] == "token":
            merge = merge + split_heads(F.linear(x, self.merge_weight).to(near.dtype), len(self.merge))
        if self.options["merge"] == "sum":
            factor = merge.exp() / largest  # the sum of exp(score - the largest) is 1 / the largest weight
            o = (near * factor + far) / (factor + weight)
        else:
            closed = torch.sigmoid(-merge) * gone
            o = near * (1.0 - closed) + far / guarded(weight, self.options["guard"]) * closed
        return o.to(x.dtype), after


MIXERS: dict[str, Any] = {"linear": Linear, "softmax": Softmax, "window": Window, "hybrid": Hybrid}

# -- parts of a layer


class Attention(nn.Module):
    """Projections, norms and rotation of q and k around a mixer."""

    def __init__(self, options: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        self.options, self.rope = options, ropes[0]
        H, G, d, bias = options["heads"], options["kv_heads"], options["head_size"], options["qkv_bias"]
        self.q, self.k, self.v = (nn.Linear(width, heads * d, bias=bias) for heads in (H, G, G))
        self.inner = MIXERS[options["inside"]["kind"]](options, width, ropes)
        self.o = nn.Linear(H * d, width, bias=options["output_bias"])
        if options["qk_norm"]:
            norm, own = {"kind": "rms", "eps": options["norm_eps"]}, not options["qk_norm_wide"]
            self.q_norm, self.k_norm = (Norm(norm, d if own else heads * d) for heads in (H, G))
        if options["gate"]:
            rows, own = (H, False) if options["gate_per_head"] else (H * d, bias)
            self.gate = nn.Linear(width, rows, bias=own)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = self.inner.shapes()
        return shapes

    def normed(self, x: Tensor, norm: Norm) -> Tensor:
        if self.options["qk_norm_wide"]:
            return split_heads(norm(merge_heads(x)), x.shape[1])
        normed: Tensor = norm(x)
        return normed

    def forward(self, x: Tensor, state: States, tokens: Tokens) -> tuple[Tensor, States]:
        c = self.options
        q, k = split_heads(self.q(x), c["heads"]), split_heads(self.k(x), c["kv_heads"])
        v, norms = split_heads(self.v(x), c["kv_heads"]), c["qk_norm"]
        if norms and not c["qk_norm_after"]:
            q, k = self.normed(q, self.q_norm), self.normed(k, self.k_norm)
        if self.inner.rotates and self.rope is not None:
            q, k = (rotated(part, tokens.rotation(self.rope)).to(x.dtype) for part in (q, k))
        if norms and c["qk_norm_after"]:
            q, k = self.normed(q, self.q_norm), self.normed(k, self.k_norm)
        scale = c["position_scale"]
        if scale is not None and self.inner.scales:
            lengths = tokens.position.clamp(min=0) // scale["length"]
            q = q * (1.0 + scale["factor"] * torch.log(lengths.to(wide(q)) + 1.0))[:, None, :, None].to(q.dtype)
        o, after = self.inner(q, k, v, x, state, tokens)
        if c["gate"]:
            gate = torch.sigmoid(self.gate(x))
            o = o * (gate.mT[..., None] if c["gate_per_head"] else split_heads(gate, c["heads"]))
        return self.o(merge_heads(o)), after


class Dense(nn.Module):
    """down(act(up(x))), or down(act(gate(x)) · up(x))."""

    def __init__(self, options: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        size, bias = options["size"], options["bias"]
        self.activation = ACTIVATIONS[options["activation"]]
        self.gate = nn.Linear(width, size, bias=bias) if options["gated"] else None
        self.up, self.down = nn.Linear(width, size, bias=bias), nn.Linear(size, width, bias=bias)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def forward(self, x: Tensor, state: States, tokens: Tokens) -> tuple[Tensor, States]:
        up = self.up(x)
        return self.down(self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up), {}


class ShortConv(nn.Module):
    """W_o (c ⊙ conv(b ⊙ u)), [b, c, u] = W x (LFM2, Liquid AI 2025, arXiv 2511.23404)."""

    def __init__(self, options: Options, width: int, ropes: Ropes) -> None:
        super().__init__()
        bias = options["bias"]
        self.projection = nn.Linear(width, 3 * width, bias=bias)
        self.conv = ShortConvolution(options["taps"], width, bias)
        self.o = nn.Linear(width, width, bias=bias)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"conv": self.conv.shape()}

    def forward(self, x: Tensor, state: States, tokens: Tokens) -> tuple[Tensor, States]:
        b, c, u = self.projection(x).chunk(3, -1)
        y, conv = self.conv(b * u, state["conv"], tokens)
        return self.o(c * y), {"conv": conv}


PARTS: dict[str, Any] = {"attention": Attention, "dense": Dense, "short_conv": ShortConv}


class Block(nn.Module):
    """A layer: norm_sum(x + multiplier · norm_after(f(norm(x)))) for each part f; one `beside` reads the same x."""

    parts: Sequence[Any]

    def __init__(self, layer: Options, width: int, ropes: list[Ropes]) -> None:
        super().__init__()
        self.options = layer["parts"]
        made = (PARTS[part["kind"]](part, width, own) for part, own in zip(self.options, ropes, strict=True))
        self.parts = nn.ModuleList(made)  # type: ignore[assignment]
        self.norms, self.norms_after, self.norms_sum = (
            nn.ModuleList(Norm(part[name], width) for part in self.options)
            for name in ("norm", "norm_after", "norm_sum")
        )
        self.names: list[dict[str, str]] = []  # of states: a suffix tells parts apart
        for n, part in enumerate(self.parts):
            own: dict[str, tuple[int, ...]] = part.shapes()
            shared = any(not names.keys().isdisjoint(own) for names in self.names)
            self.names.append({name: f"{name}_{n}" if shared else name for name in own})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        pairs = zip(self.parts, self.names, strict=True)
        return {names[own]: shape for part, names in pairs for own, shape in part.shapes().items()}

    def forward(self, x: Tensor, state: States, tokens: Tokens) -> tuple[Tensor, States]:
        after: States = {}
        seen = x
        for n, (part, names, c) in enumerate(zip(self.parts, self.names, self.options, strict=True)):
            seen = seen if c["beside"] else x
            if c["norm"] is not None or not c["beside"]:
                normed = self.norms[n](seen)
            y, new = part(normed, {own: state[name] for own, name in names.items()}, tokens)
            after |= {names[own]: value for own, value in new.items()}
            y = self.norms_after[n](y) * c["multiplier"]
            x = self.norms_sum[n](x + y if c["residual"] else y)
        return x, after


class Positions(nn.Module):
    """Positions that are added to the embeddings: a learned table, sines, or none."""

    def __init__(self, options: Options | None, width: int) -> None:
        super().__init__()
        self.kind, self.width = None if options is None else options["kind"], width
        if options is not None and self.kind == "learned":
            self.table = nn.Embedding(options["max_positions"], width)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """x (B, T, D), position (B, T)."""
        if self.kind == "learned":
            if int(position.max()) >= self.table.num_embeddings:
                raise ValueError(f"the model has {self.table.num_embeddings} positions; the text is longer")
            rows: Tensor = self.table(position.clamp(min=0))
            return x + rows
        if self.kind == "sinusoidal":
            steps = torch.arange(0, self.width, 2, dtype=torch.float64, device=x.device)
            angles = position[..., None].double() * 10000.0 ** (-steps / self.width)
            return x + torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)
        return x


class T2RForCausalLM(PreTrainedModel, GenerationMixin):
    """A decoder with explicit states. `past_key_values` is a `T2RCache`, which a call reads and moves on."""

    blocks: Sequence[Any]
    config_class = T2RConfig
    base_model_prefix = "model"
    _is_stateful = True
    _tied_weights_keys = {"head.weight": "embedding.weight"}

    def __init__(self, config: T2RConfig) -> None:
        super().__init__(config)
        c = self.options = config.t2r["config"]
        width, found = c["width"], config.t2r["rotations"]
        tables = [Rope(one["frequencies"], one["magnitude"]) for one in found["tables"]]
        known = [None, *tables]
        ropes = [[(known[q], known[features]) for q, features in layer] for layer in found["layers"]]  # 0: none
        self.embedding = nn.Embedding(c["vocab_size"], width)
        self.positions = Positions(c["positions"], width)
        self.embedding_norm = Norm(c["embedding_norm"], width)
        layers = zip(c["layers"], ropes, strict=True)
        self.blocks = nn.ModuleList(Block(layer, width, own) for layer, own in layers)  # type: ignore[assignment]
        self.norm = Norm(c["last_norm"], width)
        self.head = nn.Linear(width, c["vocab_size"], bias=c["head_bias"])
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """All weights are in the folder."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.head = new_embeddings

    def empty_cache(self, batch: int) -> T2RCache:
        """The states before the first token."""
        weight = self.head.weight
        states = {
            f"{name}.{layer}": torch.zeros(batch, *shape, dtype=wide(weight), device=weight.device)
            for layer, block in enumerate(self.blocks)
            for name, shape in block.shapes().items()
        }
        states["position"] = torch.zeros(batch, dtype=torch.int32, device=weight.device)
        return T2RCache(states)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: T2RCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, T, vocabulary) for ids (B, T).

        Args:
            attention_mask: (B, T) or with the columns of earlier calls before them; 0 for padding, which may stand
                before a text, and behind one where no cache is asked for.
            past_key_values: the states before; None: those before the first token.
            labels: (B, T), as transformers has them.
            logits_to_keep: of so many last tokens; 0: of all.

        Raises:
            ValueError: padding within or behind a text whose states are asked for.
        """
        cache = self.empty_cache(len(input_ids)) if past_key_values is None else past_key_values
        real = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :].bool()
        if real is not None and bool(real.all()):
            real = None
        behind = real is not None and (cache.tokens > 0 or bool((real[:, :-1] & ~real[:, 1:]).any()))
        if behind and (use_cache or past_key_values is not None):
            raise ValueError("padding stands before a text: a state cannot pass over what is behind one")
        rows = [self._read(ids, masks, cache) for ids, masks in chunks(input_ids, real)]
        x = torch.cat(rows, 1)
        if isinstance(logits_to_keep, int):
            x = x[:, -logits_to_keep:] if logits_to_keep else x
        else:
            x = x[:, logits_to_keep]
        logits = self.head(x) * self.options["logit_scale"]
        cap = self.options["logit_softcap"]
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.options["vocab_size"], **kwargs)
        kept = cache if not behind and (use_cache or use_cache is None) else None
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=kept)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output

    def _read(self, ids: Tensor, real: Tensor | None, cache: T2RCache) -> Tensor:
        """Normalized rows (B, T, D) of at most CHUNK tokens; the cache moves on."""
        tokens = Tokens(ids, cache.states["position"], real)
        x = self.embedding(ids) * self.options["embedding_scale"]
        x = self.embedding_norm(self.positions(x, tokens.position))
        after: States = {"position": tokens.after.int()}
        for layer, block in enumerate(self.blocks):
            state = {name: cache.states[f"{name}.{layer}"] for name in block.shapes()}
            x, new = block(x, state, tokens)
            after |= {f"{name}.{layer}": value for name, value in new.items()}
        cache.states, cache.tokens = after, cache.tokens + ids.shape[1]
        normed: Tensor = self.norm(x)
        return normed


def chunks(ids: Tensor, real: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
    """Tokens and their masks, CHUNK at a time."""
    parts = ids.split(CHUNK, 1)
    masks = [None] * len(parts) if real is None else real.split(CHUNK, 1)
    return list(zip(parts, masks, strict=True))
