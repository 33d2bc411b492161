"""Parts of a layer, and their residual sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.checkpoints.hub.remote.base import (
    ACTIVATIONS,
    Norm,
    Options,
    Ropes,
    ShortConvolution,
    States,
    Tokens,
    merge_heads,
    rotated,
    split_heads,
    wide,
)
from t2r_export.checkpoints.hub.remote.linear import Linear
from t2r_export.checkpoints.hub.remote.softmax import Hybrid, Softmax, Window

MIXERS: dict[str, Any] = {"linear": Linear, "softmax": Softmax, "window": Window, "hybrid": Hybrid}


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
        self.names: list[dict[str, str]] = []  # of states: a suffix distinguishes parts
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
