"""Linear attention and a softmax window in one layer: what is near exactly, what is far in a sum (LoLCATs, Zhang et al.
2024, arXiv 2410.10254, section 3.2).

A query sees the last W tokens, itself among them, by softmax, and every older one by its features: a token enters S and
z at the step at which it leaves the window. With c the largest score in the window,

    sum    o = (γ Σ exp(q·k_i/√d - c) v_i + φ(q)ᵀS) / (γ Σ exp(q·k_i/√d - c) + φ(q)·z)     (their eq. 6)
    gate   o = g softmax(q·k/√d) v + (1 - g) φ(q)ᵀS / guard(φ(q)·z)

with a learned factor γ, or gate g, for each query head. Until a token leaves, S and z are zero and both are softmax
attention (the gate is open then). Keys are kept as the model turns them: φ of a key that leaves is what
`mixers.linear` has for it with positions='keep'. The first tokens of a text may be sinks: they stay beside the window,
turned as they were, and never enter S and z.

With the update rule `gated`, S and z decay at every step, before they take in the token that leaves:

    S_t = g_t S_{t-1} + φ(k_{t-W}) v_{t-W}ᵀ      z_t = g_t z_{t-1} + φ(k_{t-W})

g_t is a head's own number, or computed from the present token x_t (`mixers.gates`). The leaving token's gate would have
to be kept in the buffer for W steps; the present one's needs no state, and tells as well that what is far has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config.mixers import HybridConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.banded import (
    MASKED,
    absent,
    band_scores,
    chunk_length,
    from_rows,
    key_bands,
    sink_scores,
    sinks_after,
    slot_constants,
    step_sinks,
    steps_bias,
    steps_sink_bias,
    steps_sinks,
)
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.mixers.feature_maps import FEATURE_MAPS, FeatureMap, build_feature_map
from t2r_export.model.mixers.gates import Gates
from t2r_export.model.mixers.recurrences import RECURRENCES, guarded
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary, rotate
from t2r_runtime.signature import BATCH, StateSpec

OPEN_GATE = 2.0  # where training of a gate starts: sigmoid(2) is 0.88, nearly the window alone


class HybridMixer(Mixer):
    """A softmax window over the last tokens, linear attention over all before them."""

    config: HybridConfig
    slots: Tensor  # (s, 1)
    needed: Tensor  # (s + W)

    def __init__(self, model: ModelConfig, config: HybridConfig) -> None:
        super().__init__(model, config)
        H, G, d = model.heads, model.kv_heads, model.head_size
        self.q = nn.Linear(model.width, H * d, bias=model.qkv_bias)
        self.k = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.v = nn.Linear(model.width, G * d, bias=model.qkv_bias)
        self.o = nn.Linear(H * d, model.width, bias=model.output_bias)
        linear = config.linear()
        self.joint = FEATURE_MAPS[config.feature_map].joint
        if self.joint:
            self.phi = build_feature_map(G, d, linear)
        else:
            self.phi_q, self.phi_k = build_feature_map(H, d, linear), build_feature_map(G, d, linear)
            self.phi_q.imitate(self.phi_k)
        self.gates = Gates(model.width, G, linear)
        # log γ, or what the gate is the sigmoid of
        self.merge = nn.Parameter(torch.full((H,), OPEN_GATE if config.merge == "gate" else 0.0))
        slots, needed = slot_constants(config.sinks, config.window)
        self.register_buffer("slots", slots, persistent=False)
        self.register_buffer("needed", needed, persistent=False)

    @property
    def _maps(self) -> tuple[FeatureMap, FeatureMap]:
        """Of q and of k."""
        return (self.phi, self.phi) if self.joint else (self.phi_q, self.phi_k)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        H, G, d, W, s = self.heads, self.kv_heads, self.head_size, self.config.window, self.config.sinks
        q, k, v = self.q(x).view(B, T, H, d), self.k(x).view(B, T, G, d), self.v(x).view(B, T, G, d)
        if rotary is not None:
            q, k = rotate(q, rotary).to(v.dtype), rotate(k, rotary).to(v.dtype)
        new = {"k": k.transpose(1, 2), "v": v.transpose(1, 2)}  # (B, G, T, d)
        seen = state["count"][:, None] + torch.arange(T, device=x.device)  # (B, T): before each token
        gone = seen >= W + s  # a token leaves the window that is no sink
        after = {name: torch.cat([state[name].to(v.dtype), part], 2) for name, part in new.items()}
        if s:
            after |= {f"sink_{n}": sinks_after(state[f"sink_{n}"], part, state["count"]) for n, part in new.items()}
        sums, S, z = self._far(x, q, after["k"][:, :, :T], after["v"][:, :, :T], gone, state)
        near = self._near(q * d**-0.5, after, state["count"], seen).to(sums.dtype)
        y = self._merged(near.split([d, 1], -1), sums.split([d, 1], -1), gone[:, :, None, None])
        after |= {name: after[name][:, :, -W:] for name in new} | {"S": S, "z": z, "count": state["count"] + T}
        return self.o(y.to(x.dtype).flatten(2)), {name: after[name] for name in state}

    def _far(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, gone: Tensor, state: State) -> tuple[Tensor, ...]:
        """What the features give, with values and without (B, T, H, d + 1), and S and z after the tokens.

        k and v (B, G, T, d) are of the tokens that leave the window; they enter where `gone` (B, T) says so.
        """
        B, T, H, _ = q.shape
        phi_q, phi_k = self._maps
        features = phi_q(q.transpose(1, 2), True).reshape(B, H, T, -1).transpose(1, 2)
        leaving = phi_k(k, False).reshape(B, self.kv_heads, T, -1).transpose(1, 2) * gone[:, :, None, None]
        # z is the state of a value that is always 1
        values, both = _with_ones(v).transpose(1, 2), torch.cat([state["S"], state["z"].unsqueeze(-1)], -1)
        log_gate = self.gates.parallel(self.gates.logits(x), B, T).log_gate
        rule = RECURRENCES[self.config.update_rule]
        sums, after = rule.parallel(features, leaving, values, both, log_gate)
        return sums, after[..., :-1], after[..., -1]

    def _near(self, q: Tensor, kept: State, count: Tensor, seen: Tensor) -> Tensor:
        """What the exponentials of the window and of the sinks give, with values and without (B, T, H, d + 1).

        q (B, T, H, d), scaled; `kept`, the buffers before the text with the text behind them, and the sinks after it.
        """
        W, s, T = self.config.window, self.config.sinks, q.shape[1]
        C = chunk_length(W, T)
        scores, values = [band_scores(q, kept["k"], count, W, C, s)], [key_bands(_with_ones(kept["v"]), W, C)]
        if s:
            scores.append(sink_scores(q, kept["sink_k"], seen, C))
            values.append(_with_ones(kept["sink_v"]).unsqueeze(2))
        joined = torch.cat(scores, -1)
        weights = (joined - joined.amax(-1, keepdim=True)).exp().split([part.shape[-1] for part in scores], -1)
        parts = [w.to(part.dtype) @ part for w, part in zip(weights, values, strict=True)]
        return from_rows(torch.stack(parts).sum(0), T, C)

    def _merged(self, window: Sequence[Any], sums: Sequence[Any], gone: Any, ops: TorchOps = TORCH) -> Any:
        """What exponentials and what features give, each with values and without, as one: (…, H, d), (…, H, 1)."""
        (near, weight), (far, far_weight) = window, sums
        merge = ops.reshape(ops.parameter(self.merge), (self.heads, 1))
        if self.config.merge == "sum":
            factor = ops.exp(merge)
            numerator = ops.add(ops.mul(near, factor), far)
            return ops.div(numerator, ops.add(ops.mul(weight, factor), far_weight))
        closed = ops.mul(ops.sigmoid(ops.mul(merge, -1.0)), gone)  # 1 - g, and 0 until there is something far
        far = ops.div(far, guarded(far_weight, self.config.guard, ops))
        return ops.add(ops.mul(ops.div(near, weight), ops.sub(1.0, closed)), ops.mul(far, closed))

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        if x.shape[0] != state["count"].shape[0]:
            return self._steps(x, state, rotary, ops)
        H, G, d, W, s = self.heads, self.kv_heads, self.head_size, self.config.window, self.config.sinks
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, H + G, d))
        if rotary is not None:
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [H, G], axis=1)
        k, v = ops.reshape(k, (-1, G, 1, d)), ops.reshape(v, (-1, G, 1, d))
        seen = ops.reshape(ops.cast(state["count"], "float32"), (-1, 1, 1, 1))
        (old_k, keys), (old_v, values) = (_moved(state[n], new, ops) for n, new in (("k", k), ("v", v)))
        after = {"k": keys, "v": values}
        if s:
            after |= {
                name: step_sinks(state[name], new, self.slots, seen, ops)
                for name, new in (("sink_k", k), ("sink_v", v))
            }
            keys, values = (ops.concat([after[f"sink_{n}"], after[n]], axis=2) for n in ("k", "v"))
        gone = ops.sub(1.0, absent(float(W + s), seen, ops))
        phi_q, phi_k = self._maps
        K = self.config.feature_size
        features = phi_q(ops.unsqueeze(q, 2), True, ops)
        leaving = ops.mul(ops.reshape(phi_k(old_k, False, ops), (-1, G, 1, K)), gone)
        log_gate = self.gates.step(self.gates.logits(x, ops), ops).log_gate
        rule = RECURRENCES[self.config.update_rule]
        far, far_weight, S, z = rule.step(features, leaving, old_v, state["S"], state["z"], log_gate, None, ops)
        scores = ops.matmul(ops.reshape(ops.mul(q, d**-0.5), (-1, G, H // G, d)), ops.transpose(keys, (0, 1, 3, 2)))
        scores = ops.add(scores, ops.mul(absent(ops.parameter(self.needed), seen, ops), MASKED))
        weights = ops.exp(ops.sub(scores, ops.largest(scores)))  # (B, G, R, s + W)
        near, weight = ops.matmul(weights, values), ops.mul(ops.mean(weights), float(s + W))
        parts = [ops.reshape(part, (-1, H, part.shape[-1])) for part in (near, weight, far, far_weight)]
        y = self._merged(parts[:2], parts[2:], ops.reshape(gone, (-1, 1, 1)), ops)
        y = ops.linear(ops.reshape(y, (-1, H * d)), self.o.weight, self.o.bias)
        return y, {**after, "S": S, "z": z, "count": ops.add(state["count"], 1)}

    def _steps(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps) -> tuple[Any, State]:
        """`step` for T tokens of each sequence, x (B·T, D): those that leave the window in one run of the update rule,
        what is near in one product, masked."""
        H, G, d, W, s = self.heads, self.kv_heads, self.head_size, self.config.window, self.config.sinks
        R, count, K = H // G, state["count"], self.config.feature_size
        both, v = ops.linears(x, [[self.q, self.k], [self.v]])
        both = ops.reshape(both, (-1, H + G, d))
        if rotary is not None:
            both = rotate(both, rotary, ops)
        q, k = ops.split(both, [H, G], axis=1)
        k, v = ops.by_head(k, G, d, count), ops.by_head(v, G, d, count)  # (B, G, T, d)
        seen, counted = ops.positions(count, x)
        keys, values = ops.concat([state["k"], k], axis=2), ops.concat([state["v"], v], axis=2)
        after = {"k": ops.newest(keys, W), "v": ops.newest(values, W), "count": counted}
        old_k, old_v = (ops.by_row(ops.oldest(part, W), 1) for part in (keys, values))  # (B·T, G·d)
        seen = ops.cast(seen, "float32")
        gone = ops.sub(1.0, absent(float(W + s), ops.unsqueeze(ops.unsqueeze(seen, -1), -1), ops))  # (B·T, 1, 1)
        phi_q, phi_k = self._maps
        features = phi_q(ops.unsqueeze(q, 2), True, ops)
        leaving = ops.reshape(phi_k(ops.reshape(old_k, (-1, G, 1, d)), False, ops), (-1, G, K))
        log_gate = self.gates.step(self.gates.logits(x, ops), ops).log_gate
        far, far_weight, after["S"], after["z"] = RECURRENCES[self.config.update_rule].step(
            features, ops.mul(leaving, gone), old_v, state["S"], state["z"], log_gate, None, ops
        )
        q = ops.by_head(ops.mul(q, d**-0.5), G, d, count)  # (B, G, R·T, d)
        scores = ops.matmul(q, ops.transpose(keys, (0, 1, 3, 2)))
        scores = ops.add(scores, steps_bias(state["k"], k, s, count, R, ops))
        if s:
            numbers = ops.by_head(seen, 1, 1, count)
            for name, new in (("sink_k", k), ("sink_v", v)):
                after[name] = steps_sinks(state[name], new, self.slots, numbers, ops)
            first = ops.matmul(q, ops.transpose(after["sink_k"], (0, 1, 3, 2)))
            first = ops.add(first, steps_sink_bias(self.slots, numbers, R, ops))
            scores, values = ops.concat([first, scores]), ops.concat([after["sink_v"], values], axis=2)
        weights = ops.softmax(scores)
        weight = ops.div(1.0, ops.largest(weights))  # the sum of exp(score - c), since that of the largest is 1
        near = ops.mul(ops.matmul(weights, values), weight)
        window = [ops.reshape(ops.by_row(part, R), (-1, H, part.shape[-1])) for part in (near, weight)]
        sums = [ops.reshape(part, (-1, H, part.shape[-1])) for part in (far, far_weight)]
        y = ops.reshape(self._merged(window, sums, gone, ops), (-1, H * d))
        return ops.linear(y, self.o.weight, self.o.bias), after

    def parallel_obstacle(self) -> str | None:
        return None

    def state_spec(self) -> list[StateSpec]:
        G, K, d, W, s = self.kv_heads, self.config.feature_size, self.head_size, self.config.window, self.config.sinks
        sinks = {"sink_k": (G, s, d), "sink_v": (G, s, d)} if s else {}
        shapes = {"k": (G, W, d), "v": (G, W, d), **sinks, "S": (G, K, d), "z": (G, K)}
        buffers = [StateSpec(name, "float32", (BATCH, *shape)) for name, shape in shapes.items()]
        return [*buffers, StateSpec("count", "int32", (BATCH,))]

    def horizon(self) -> int:
        return self.config.window + self.config.sinks + 1

    def fold_obstacle(self) -> str | None:
        return "a key gets its features when it leaves the window"


def _with_ones(v: Tensor) -> Tensor:
    """v (…, d) with a last column of ones."""
    return F.pad(v, (0, 1), value=1.0)


def _moved(buffer: Any, new: Any, ops: TorchOps) -> tuple[Any, Any]:
    """The oldest entry of a buffer (B, G, W, d), and the buffer without it and with `new` (B, G, 1, d) at its end."""
    length = buffer.shape[2]
    if length == 1:
        return buffer, new
    oldest, rest = ops.split(buffer, [1, length - 1], axis=2)
    return oldest, ops.concat([rest, new], axis=2)
