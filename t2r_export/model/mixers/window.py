"""A sliding softmax window with sink tokens: softmax attention in a state of fixed size (StreamingLLM, Xiao et al.
2023, arXiv 2309.17453).

A query sees the first s tokens of the text, the sinks, and the last W, itself among them. Up to W + s tokens that is
all of them, and the layer is softmax attention. The state is a buffer of the last W keys and values, which moves up by
one at every step, the s sinks beside it, and the number of tokens seen.

Positions that stand in the embedding need nothing here. Rotary ones turn a key by its place in the buffer, as
StreamingLLM does, and not by its place in the text: so no angle grows without end, and keys are kept unturned. The
query's place is the last, min(t, W + s - 1): tokens in the window are at their true distance from it, and a sink at its
true distance or at W + s - 1 less its own number, whichever is smaller.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.banded import (
    MASKED,
    absent,
    band_scores,
    chunk_length,
    from_rows,
    key_bands,
    push,
    query_rows,
    sink_scores,
    sinks_after,
    slot_constants,
    step_sinks,
    steps_bias,
    steps_sink_bias,
    steps_sinks,
)
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.mixers.memory import Memory
from t2r_export.model.mixers.softmax import attend, together
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary, RotaryPositions, rotate
from t2r_runtime.signature import BATCH, StateSpec


class WindowMixer(Mixer):
    """Softmax attention over the first and the last tokens, with grouped key/value heads."""

    config: WindowConfig
    slots: Tensor
    needed: Tensor
    window_turns: Tensor  # (W, d), cos and sin
    sink_turns: Tensor  # (s, d)

    def __init__(self, model: ModelConfig, config: WindowConfig) -> None:
        super().__init__(model, config)
        d, W, s = model.head_size, config.window, config.sinks
        self.q = nn.Linear(model.width, model.heads * d, bias=model.qkv_bias)
        self.k = nn.Linear(model.width, model.kv_heads * d, bias=model.qkv_bias)
        self.v = nn.Linear(model.width, model.kv_heads * d, bias=model.qkv_bias)
        self.o = nn.Linear(model.heads * d, model.width, bias=model.output_bias)
        self.memory = Memory(model.kv_heads, config.memory, d, d, 0, False) if config.memory else None
        self.turn = RotaryPositions(model) if model.position == "rotary" else None
        slots, needed = slot_constants(s, W)
        self.register_buffer("slots", slots, persistent=False)
        self.register_buffer("needed", needed, persistent=False)
        if self.turn is not None:
            # of the window's slots, the present token being 0; the sinks' count from the first token
            self.register_buffer("window_turns", self.turn.fixed(s - needed[s:]), persistent=False)
            self.register_buffer("sink_turns", self.turn.fixed(slots.squeeze(1)), persistent=False)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        G, W, s = self.kv_heads, self.config.window, self.config.sinks
        q = self.q(x).view(B, T, self.heads, -1) * self.head_size**-0.5
        k = self.k(x).view(B, T, G, -1).transpose(1, 2)  # (B, G, T, d)
        v = self.v(x).view(B, T, G, -1).transpose(1, 2)
        count = state["count"]
        seen = count[:, None] + torch.arange(T, device=x.device, dtype=count.dtype)  # (B, T): before each token
        after = {"k": torch.cat([state["k"].to(k.dtype), k], 2), "v": torch.cat([state["v"].to(v.dtype), v], 2)}
        if s:
            new = {"sink_k": k, "sink_v": v}
            after |= {name: sinks_after(state[name], part, count) for name, part in new.items()}
        C = chunk_length(W, T)
        scores = [band_scores(q, after["k"], count, W, C, s, self.turn)]
        values = [key_bands(after["v"], W, C)]
        if s:
            scores.append(self._sink_scores(q, after["sink_k"], seen, C))
            values.append(after["sink_v"].to(v.dtype).unsqueeze(2))
        if self.memory is not None:  # no place in the text: the query meets it unturned
            scores.append(query_rows(q, G, C) @ self.memory.k.mT.unsqueeze(1))
            values.append(self.memory.v.unsqueeze(1))
        weights = torch.cat(scores, -1).softmax(-1).split([part.shape[-1] for part in scores], -1)
        y = torch.stack([w.to(v.dtype) @ part for w, part in zip(weights, values, strict=True)]).sum(0)
        after |= {name: after[name][:, :, -W:] for name in ("k", "v")}
        y = from_rows(y, T, C).flatten(2)
        return self.o(y.to(x.dtype)), {**{n: after[n] for n in state if n != "count"}, "count": count + T}

    def _sink_scores(self, q: Tensor, sinks: Tensor, seen: Tensor, C: int) -> Tensor:
        """Scores (B, G, N, R·C, s) of each chunk's queries, masked; `seen` (B, T) tokens stand before each."""
        if self.turn is not None:
            q = rotate(q, self.turn.rotary(seen.clamp(max=self._last)))
            slots = torch.arange(sinks.shape[2], device=q.device)
            cos, sin = (part.squeeze(-2) for part in self.turn.rotary(slots))
            sinks = rotate(sinks, (cos, sin))
        return sink_scores(q, sinks, seen, C)

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        if x.shape[0] != state["count"].shape[0]:
            return self._steps(x, state, ops)
        G, d, s = self.kv_heads, self.head_size, self.config.sinks
        R = self.heads // G
        q, k, v = ops.linears(x, [[self.q], [self.k], [self.v]])
        q = ops.reshape(ops.mul(q, d**-0.5), (-1, G, R, d))
        k, v = ops.reshape(k, (-1, G, 1, d)), ops.reshape(v, (-1, G, 1, d))
        seen = ops.reshape(ops.cast(state["count"], "float32"), (-1, 1, 1, 1))
        after = {"k": push(state["k"], k, ops), "v": push(state["v"], v, ops)}
        keys = after["k"]
        if self.turn is not None:
            cos, sin = ops.split(ops.parameter(self.window_turns), [d // 2] * 2)
            keys = rotate(keys, (cos, sin), ops)
        scores = ops.matmul(q, ops.transpose(keys, (0, 1, 3, 2)))  # (B, G, R, W)
        if s:
            new = {"sink_k": k, "sink_v": v}
            after |= {name: step_sinks(state[name], x, self.slots, seen, ops) for name, x in new.items()}
            scores = ops.concat([self._step_sink_scores(q, after["sink_k"], state["count"], ops), scores])
        scores = ops.add(scores, ops.mul(absent(ops.parameter(self.needed), seen, ops), MASKED))
        values = [after["sink_v"], after["v"]] if s else [after["v"]]
        if self.memory is not None:
            key, value = ops.parameter(self.memory.k), ops.parameter(self.memory.v)
            scores = ops.concat([ops.matmul(q, ops.transpose(key, (0, 2, 1))), scores])
            values = [value, *values]
        weights = ops.softmax(scores)
        sizes = [part.shape[-2] for part in values]
        shares = ops.split(weights, sizes) if len(sizes) > 1 else [weights]
        y = ops.matmul(shares[0], values[0])
        for share, part in zip(shares[1:], values[1:], strict=True):
            y = ops.add(y, ops.matmul(share, part))
        y = ops.reshape(y, (-1, self.heads * d))
        return ops.linear(y, self.o.weight, self.o.bias), {**after, "count": ops.add(state["count"], 1)}

    def _steps(self, x: Any, state: State, ops: TorchOps) -> tuple[Any, State]:
        """`step` for T tokens of each sequence, x (B·T, D): they and what the buffers held in one product, masked."""
        G, d, W, s = self.kv_heads, self.head_size, self.config.window, self.config.sinks
        R, count = self.heads // G, state["count"]
        q, k, v = ops.linears(x, [[self.q], [self.k], [self.v]])
        q = ops.reshape(ops.mul(q, d**-0.5), (-1, self.heads, d))
        k, v = ops.by_head(k, G, d, count), ops.by_head(v, G, d, count)  # (B, G, T, d)
        seen, counted = ops.positions(count, x)
        keys, values = ops.concat([state["k"], k], axis=2), ops.concat([state["v"], v], axis=2)  # (B, G, W + T, d)
        after = {"k": ops.newest(keys, W), "v": ops.newest(values, W), "count": counted}
        turned = q
        if self.turn is not None:  # by places among these tokens: only distances matter
            keys = rotate(keys, _without_heads(self.turn.rotary(ops.places(keys), ops), ops), ops)
            own, _ = ops.positions(ops.add(ops.mul(count, 0), W), x)
            turned = rotate(q, self.turn.rotary(own, ops), ops)
        scores = ops.matmul(ops.by_head(turned, G, d, count), ops.transpose(keys, (0, 1, 3, 2)))  # (B, G, R·T, W + T)
        scores = ops.add(scores, steps_bias(state["k"], k, s, count, R, ops))
        if s:
            numbers = ops.by_head(ops.cast(seen, "float32"), 1, 1, count)  # (B, 1, T, 1): of the tokens
            for name, new in (("sink_k", k), ("sink_v", v)):
                after[name] = steps_sinks(state[name], new, self.slots, numbers, ops)
            near = self._turned_sink_scores(q, after["sink_k"], seen, count, ops)
            near = ops.add(near, steps_sink_bias(self.slots, numbers, R, ops))
            scores, values = ops.concat([near, scores]), ops.concat([after["sink_v"], values], axis=2)
        weights = ops.softmax(scores)
        y = ops.matmul(weights, values)
        if self.memory is not None:
            key, value = ops.parameter(self.memory.k), ops.parameter(self.memory.v)
            remembered = attend(ops.by_head(q, G, d, count), ops.transpose(key, (0, 2, 1)), value, ops)
            y = together((y, scores, weights), remembered, ops)
        return ops.linear(ops.by_row(y, R), self.o.weight, self.o.bias), after

    def _turned_sink_scores(self, q: Any, sinks: Any, seen: Any, count: Any, ops: TorchOps) -> Any:
        """`_step_sink_scores` of q (B·T, H, d), `seen` (B·T) tokens before each -> (B, G, R·T, s)."""
        if self.turn is not None:
            q = rotate(q, self.turn.rotary(ops.minimum(seen, self._last), ops), ops)
            cos, sin = ops.split(ops.parameter(self.sink_turns), [self.head_size // 2] * 2)
            sinks = rotate(sinks, (cos, sin), ops)
        q = ops.by_head(q, self.kv_heads, self.head_size, count)
        return ops.matmul(q, ops.transpose(sinks, (0, 1, 3, 2)))

    def _step_sink_scores(self, q: Any, sinks: Any, count: Any, ops: TorchOps) -> Any:
        """Scores (B, G, R, s), turned where the model turns."""
        if self.turn is not None:
            place = ops.unsqueeze(ops.minimum(count, self._last), -1)
            q = rotate(q, self.turn.rotary(place, ops), ops)
            cos, sin = ops.split(ops.parameter(self.sink_turns), [self.head_size // 2] * 2)
            sinks = rotate(sinks, (cos, sin), ops)
        return ops.matmul(q, ops.transpose(sinks, (0, 1, 3, 2)))

    @property
    def _last(self) -> int:
        """The query's place for the sinks once the buffer is full."""
        return self.config.window + self.config.sinks - 1

    def parallel_obstacle(self) -> str | None:
        return None

    def state_spec(self) -> list[StateSpec]:
        G, d = self.kv_heads, self.head_size
        sizes = {"k": self.config.window, "v": self.config.window}
        if self.config.sinks:
            sizes |= {"sink_k": self.config.sinks, "sink_v": self.config.sinks}
        specs = [StateSpec(name, "float32", (BATCH, G, size, d)) for name, size in sizes.items()]
        return [*specs, StateSpec("count", "int32", (BATCH,))]

    def horizon(self) -> int:
        return self._last + 1

    def fold_obstacle(self) -> str | None:
        return "softmax attention has no feature map to fold"


def _without_heads(rotary: Rotary, ops: TorchOps) -> Rotary:
    """cos and sin (T, 1, d/2) -> (T, d/2), for keys (B, G, T, d)."""
    cos, sin = rotary
    return ops.squeeze(cos, -2), ops.squeeze(sin, -2)
