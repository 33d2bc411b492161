"""RWKV-7 (Peng et al. 2025, arXiv 2503.14456): time mixing and channel mixing, each of a token and the one before it.

    x_• = x_t + (x_{t-1} - x_t) ⊙ μ_•                for r, w, k, v, a, g
    w = exp(-e^-½ σ(w_0 + W_2 tanh(W_1 x_w)))        a = σ(a_0 + A_2 A_1 x_a)        g = G_2 σ(G_1 x_g)
    κ̂ = l2(k ⊙ ξ)        k̃ = k ⊙ (1 + (a - 1) ⊙ α)      ṽ = v + (v_first - v) ⊙ σ(v_0 + V_2 V_1 x_v)
    S_t = diag(w) S_{t-1} - (κ̂ ⊙ a) (κ̂ᵀ S_{t-1}) + k̃ ṽᵀ
    y = W_o (g ⊙ (norm(Sᵀ r) + (r · ρ ⊙ k̃) ṽ))

r, k and v are projections of x_r, x_k and x_v. S is (K, V), the transpose of the paper's. v_first is the value of the
nearest rwkv7 part below that has no V_1. The norm is per head, with a scale and a shift per channel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.parts import ChannelMixConfig, RWKV7Config
from t2r_export.model.mixers.convolution import shifted
from t2r_export.model.mixers.decays import before_decay, sigmoid_decay
from t2r_export.model.mixers.norms import group_norm, l2_norm
from t2r_export.model.ops import Erase, Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec

L2_EPS = 1e-12  # added under the root
FIRST_VALUE = "rwkv7.value"  # lent to the layers above


class RWKV7(Part):
    """Token shift, projections, the erase rule, group norm, gate, output."""

    config: RWKV7Config

    def __init__(self, site: Site, config: RWKV7Config) -> None:
        super().__init__(site, config)
        D, inner, c = site.width, config.inner, config
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.full((1, D), 0.5)))
        self.r, self.k, self.v = (nn.Linear(D, inner, bias=False) for _ in "rkv")
        self.w1, self.w2 = nn.Linear(D, c.decay_rank, bias=False), nn.Linear(c.decay_rank, inner, bias=False)
        self.a1, self.a2 = nn.Linear(D, c.erase_rank, bias=False), nn.Linear(c.erase_rank, inner, bias=False)
        self.g1, self.g2 = nn.Linear(D, c.gate_rank, bias=False), nn.Linear(c.gate_rank, inner, bias=False)
        self.w0 = nn.Parameter(torch.linspace(-6.0, 0.0, inner))
        self.a0 = nn.Parameter(torch.zeros(inner))
        if c.value_rank:
            self.v1, self.v2 = nn.Linear(D, c.value_rank, bias=False), nn.Linear(c.value_rank, inner, bias=False)
            self.v0 = nn.Parameter(torch.ones(inner))
        self.k_k, self.k_a = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.ones(inner))
        self.r_k = nn.Parameter(torch.zeros(c.heads, c.head_size))
        self.norm_weight, self.norm_bias = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.zeros(inner))
        self.o = nn.Linear(inner, D, bias=False)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, c = step.ops, self.config
        before, last = shifted(x, state["last"], ops)
        change = ops.sub(before, x)
        mixes: list[Tensor] = [getattr(self, f"x_{name}") for name in "rwkvag"]
        x_r, x_w, x_k, x_v, x_a, x_g = (mixed(x, change, mix, ops) for mix in mixes)
        r, k = ops.linear(x_r, self.r.weight, None), ops.linear(x_k, self.k.weight, None)
        decay = ops.linear(ops.tanh(ops.linear(x_w, self.w1.weight, None)), self.w2.weight, self.w0)
        log_gate = sigmoid_decay(decay, c.heads, ops)
        a = ops.sigmoid(ops.linear(ops.linear(x_a, self.a1.weight, None), self.a2.weight, self.a0))
        g = ops.linear(ops.sigmoid(ops.linear(x_g, self.g1.weight, None)), self.g2.weight, None)
        unit = l2_norm(ops.split_heads(ops.mul(k, ops.parameter(self.k_k)), c.heads), L2_EPS, ops)
        k = ops.mul(k, ops.add(ops.mul(ops.sub(a, 1.0), ops.parameter(self.k_a)), 1.0))
        r, k, v, a = (ops.split_heads(rows, c.heads) for rows in (r, k, self._value(x_v, step), a))
        erase = Erase(before_decay(unit, log_gate, ops), ops.mul(ops.mul(unit, a), -1.0))
        o, _, S, _ = ops.linear_attention(r, k, v, state["S"], None, log_gate, None, erase)
        o = group_norm(ops.merge_heads(o), self.norm_weight, self.norm_bias, c.norm_eps, c.heads, ops)
        bonus = ops.mul(ops.mul(r, k), ops.reshape(ops.parameter(self.r_k), (c.heads, 1, c.head_size)))
        bonus = ops.mul(ops.mul(ops.mean(bonus), float(c.head_size)), v)
        y = ops.mul(ops.add(o, ops.merge_heads(bonus)), g)
        return ops.linear(y, self.o.weight, None), {"last": last, "S": S}

    def _value(self, x_v: T, step: Step[T]) -> T:
        """Rows v (N, H · V), mixed with those of the first layer."""
        ops = step.ops
        v = ops.linear(x_v, self.v.weight, None)
        if not self.config.value_rank:
            step.lend(FIRST_VALUE, v)
            return v
        share = ops.sigmoid(ops.linear(ops.linear(x_v, self.v1.weight, None), self.v2.weight, self.v0))
        return ops.add(v, ops.mul(ops.sub(step.borrowed(FIRST_VALUE), v), share))

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        return [last_row(self.width), StateSpec("S", "float32", (BATCH, c.heads, c.head_size, c.head_size))]


class ChannelMix(Part):
    """down(relu(up(x_k))²), x_k = x_t + (x_{t-1} - x_t) ⊙ μ."""

    config: ChannelMixConfig

    def __init__(self, site: Site, config: ChannelMixConfig) -> None:
        super().__init__(site, config)
        self.x_k = nn.Parameter(torch.full((1, site.width), 0.5))
        self.up = nn.Linear(site.width, config.size, bias=False)
        self.down = nn.Linear(config.size, site.width, bias=False)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        before, last = shifted(x, state["last"], ops)
        change = ops.sub(before, x)
        hidden = ops.relu(ops.linear(mixed(x, change, self.x_k, ops), self.up.weight, None))
        return ops.linear(ops.mul(hidden, hidden), self.down.weight, None), {"last": last}

    def state_spec(self) -> list[StateSpec]:
        return [last_row(self.width)]


def mixed(x: T, change: T, mix: Tensor, ops: Ops[T]) -> T:
    """x + (x_{t-1} - x) ⊙ μ, from the change and μ (1, D)."""
    return ops.add(x, ops.mul(change, ops.parameter(mix)))


def last_row(width: int) -> StateSpec:
    """The last token's row."""
    return StateSpec("last", "float32", (BATCH, 1, 1, width))
