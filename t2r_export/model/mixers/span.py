"""Adaptive attention span: softmax attention in which every head learns how far back it looks (Sukhbaatar et al. 2019,
arXiv 1905.07799).

A token at distance x weighs m(x)·exp(score), where the soft mask m(x) = clamp((R + z - x) / R, 0, 1) (eq. 3) falls from
1 to 0 over the ramp R behind the head's learned span z. Training adds z to the loss (`penalty`, eq. 7), so that a head
keeps only what it needs.

In training the state is a buffer of the largest span for every kv head. The fold gives each kv head a buffer of its
own, as long as the longest span among its query heads, ⌈R + z⌉ tokens; the masks become constants. Nothing that was
cut off weighed anything, so the two are the same function. Rotary positions turn a key by its place in the buffer, as
in `mixers.window`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config.mixers import SpanConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.banded import (
    MASKED,
    absent,
    band_distance,
    band_scores,
    chunk_length,
    from_rows,
    key_bands,
    push,
)
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary, RotaryPositions, rotate
from t2r_runtime.signature import BATCH, StateSpec


class SpanMixer(Mixer):
    """Softmax attention with a learned span a query head (`span`), or folded with its masks as constants."""

    config: SpanConfig
    ages: Tensor  # (span)
    turns: Tensor  # (span, d), cos and sin

    def __init__(self, model: ModelConfig, config: SpanConfig) -> None:
        super().__init__(model, config)
        d, G, R = model.head_size, model.kv_heads, model.heads // model.kv_heads
        self.model_config = model
        self.q = nn.Linear(model.width, model.heads * d, bias=model.qkv_bias)
        self.k = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.v = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.o = nn.Linear(model.heads * d, model.width, bias=model.output_bias)
        self.turn = RotaryPositions(model) if model.position == "rotary" else None
        # of the slots, oldest first; on the CPU even where a model is laid out on the meta device
        ages = torch.arange(config.span - 1, -1, -1, device="cpu").float()
        self.register_buffer("ages", ages, persistent=False)
        if self.turn is not None:
            self.register_buffer("turns", self.turn.fixed(-ages), persistent=False)
        if config.folded:
            for g, length in enumerate(config.spans):
                self.register_buffer(f"log_mask_{g}", torch.zeros(R, length))
        else:
            self.span = nn.Parameter(torch.ones(model.heads))  # z as a share of what it can be, at first all

    def mask(self) -> Tensor:
        """m (H, span) at each distance, 0 to span - 1."""
        R, reach = self.config.ramp, self.config.span - self.config.ramp
        inside = self.span.clamp(0, 1)
        z = (self.span + (inside - self.span).detach()) * reach  # past its bounds a span can still be called back
        distance = self.ages.flip(0).to(z.dtype)
        return ((R + z[:, None] - distance) / R).clamp(0, 1)

    def penalty(self) -> Tensor:
        """λ times the mean span, as a share of the largest."""
        return self.config.span_loss * self.span.clamp(0, 1).mean()

    def log_mask(self) -> Tensor:
        """log m (H, span) at each distance, `MASKED` where m is 0."""
        if not self.config.folded:
            m = self.mask()
            return torch.where(m > 0, m.clamp(min=torch.finfo(m.dtype).tiny).log(), MASKED)
        missing = [self.config.span - length for length in self.config.spans]
        rows = [F.pad(self.get_buffer(f"log_mask_{g}"), (n, 0), value=MASKED) for g, n in enumerate(missing)]
        return torch.cat(rows).flip(-1)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        G, S = self.kv_heads, self.config.span
        q = self.q(x).view(B, T, self.heads, -1) * self.head_size**-0.5
        kv = {}
        for name, layer in (("k", self.k), ("v", self.v)):
            new = layer(x).view(B, T, G, -1).transpose(1, 2)
            kv[name] = torch.cat([self._buffer(state, name).to(new.dtype), new], 2)  # (B, G, S + T, d)
        C = chunk_length(S, T)
        scores = band_scores(q, kv["k"], state["count"], S, C, turn=self.turn)
        distance = band_distance(S, C, x.device).clamp(0, S - 1)
        bias = self.log_mask()[:, distance]  # (H, C, L)
        weights = (scores + bias.reshape(G, 1, -1, bias.shape[-1])).softmax(-1)
        y = from_rows(weights.to(q.dtype) @ key_bands(kv["v"], S, C), T, C).flatten(2)
        after = {"k": kv["k"][:, :, -S:], "v": kv["v"][:, :, -S:], "count": state["count"] + T}
        return self.o(y.to(x.dtype)), self._cut(after) if self.config.folded else after

    def _buffer(self, state: State, name: str) -> Tensor:
        """The keys or values of all kv heads at full length, (B, G, span, d)."""
        if not self.config.folded:
            full: Tensor = state[name]
            return full
        heads = [state[f"{name}{g}"] for g in range(self.kv_heads)]
        return torch.cat([F.pad(head, (0, 0, self.config.span - head.shape[2], 0)) for head in heads], 1)

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        H, G, d = self.heads, self.kv_heads, self.head_size
        q, k, v = ops.linears(x, [[self.q], [self.k], [self.v]])
        q = ops.reshape(ops.mul(q, d**-0.5), (-1, G, H // G, d))
        k, v = ops.reshape(k, (-1, G, 1, d)), ops.reshape(v, (-1, G, 1, d))
        seen = ops.reshape(ops.cast(state["count"], "float32"), (-1, 1, 1, 1))
        after = {"count": ops.add(state["count"], 1)}
        if self.config.folded:
            ones, out = [1] * G, []
            parts = [ops.split(part, ones, axis=1) if G > 1 else [part] for part in (q, k, v)]
            for g, (q_g, k_g, v_g) in enumerate(zip(*parts, strict=True)):
                after |= {f"k{g}": push(state[f"k{g}"], k_g, ops), f"v{g}": push(state[f"v{g}"], v_g, ops)}
                bias = ops.parameter(self.get_buffer(f"log_mask_{g}"))
                out.append(self._attend(q_g, after[f"k{g}"], after[f"v{g}"], bias, seen, ops))
            y = ops.concat(out, axis=1)
        else:  # the exporter folds, so this is never recorded
            after |= {"k": push(state["k"], k, ops), "v": push(state["v"], v, ops)}
            bias = self.log_mask().flip(-1).view(G, H // G, -1)
            y = self._attend(q, after["k"], after["v"], bias, seen, ops)
        y = ops.reshape(y, (-1, H * d))
        return ops.linear(y, self.o.weight, self.o.bias), {name: after[name] for name in state}

    def _attend(self, q: Any, k: Any, v: Any, bias: Any, seen: Any, ops: TorchOps) -> Any:
        """q (B, g, R, d) on buffers (B, g, n, d) with the soft mask's logarithm (…, R, n) -> (B, g, R, d)."""
        n, half = k.shape[2], self.head_size // 2
        if self.turn is not None:
            cos, sin = ops.split(self._newest(self.turns, n, ops), [half, half])
            k = rotate(k, (cos, sin), ops)
        scores = ops.add(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), bias)
        missing = absent(self._newest(self.ages, n, ops), seen, ops)
        return ops.matmul(ops.softmax(ops.add(scores, ops.mul(missing, MASKED))), v)

    def _newest(self, table: Tensor, n: int, ops: TorchOps) -> Any:
        """The rows of the n newest slots."""
        rows, older = ops.parameter(table), self.config.span - n
        return ops.split(rows, [older, n], axis=0)[1] if older else rows

    def state_spec(self) -> list[StateSpec]:
        G, d = self.kv_heads, self.head_size
        sizes = {"": (G, self.config.span)}
        if self.config.folded:
            sizes = {str(g): (1, length) for g, length in enumerate(self.config.spans)}
        buffers = [
            StateSpec(f"{name}{end}", "float32", (BATCH, heads, length, d))
            for end, (heads, length) in sizes.items()
            for name in "kv"
        ]
        return [*buffers, StateSpec("count", "int32", (BATCH,))]

    def horizon(self) -> int:
        return self.config.span

    def fold_obstacle(self) -> str | None:
        return None

    def spans(self) -> tuple[int, ...]:
        """Tokens that each kv head needs: as many as the query head of its group with the longest span."""
        if self.config.folded:
            return self.config.spans
        used = (self.mask() > 0).sum(-1)  # (H): the mask only falls
        return tuple(used.view(self.kv_heads, -1).max(-1).values.tolist())

    @torch.no_grad()
    def fold(self) -> Mixer:
        """A buffer of its own length for every kv head, and the masks as constants."""
        config = dataclasses.replace(self.config, folded=True, spans=self.spans())
        folded = SpanMixer(self.model_config, config).to(self.o.weight)
        kept = {name: weight for name, weight in self.state_dict().items() if name != "span"}
        masks = self.log_mask().flip(-1).view(self.kv_heads, -1, self.config.span)
        kept |= {f"log_mask_{g}": masks[g, :, -length:] for g, length in enumerate(config.spans)}
        folded.load_state_dict(kept)
        return folded

    def fold_state(self, state: State) -> State:
        return state if self.config.folded else self._cut(state)

    def _cut(self, state: State) -> State:
        """States at full length, `k` and `v`, as the folded mixer keeps them."""
        lengths = enumerate(self.spans())
        cut = {f"{name}{g}": state[name][:, g : g + 1, -length:] for g, length in lengths for name in "kv"}
        return {**cut, "count": state["count"]}
