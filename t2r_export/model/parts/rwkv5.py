"""RWKV-5.2 "Eagle" (Peng et al. 2024, arXiv 2404.05892, section 4): linear attention with a trained decay per channel.

    x_• = x_t + (x_{t-1} - x_t) ⊙ μ_•    for r, k, v, g, their projections r, k, v, g    w = exp(-exp(ω))
    S_t = diag(w) S_{t-1} + k_{t-1} v_{t-1}ᵀ            y = W_o (silu(g) ⊙ norm(S_tᵀ r + (r · u ⊙ k) v))

S is (K, V) and sums all tokens but the current one, whose weight is u. The norm is per head, with a scale and a shift
per channel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.parts import RWKV5Config
from t2r_export.model.mixers.convolution import shifted
from t2r_export.model.mixers.norms import group_norm
from t2r_export.model.ops import State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.parts.rwkv7 import last_row, mixed
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class RWKV5(Part):
    """Token shift, projections, linear attention, group norm, gate, output."""

    config: RWKV5Config

    def __init__(self, site: Site, config: RWKV5Config) -> None:
        super().__init__(site, config)
        D, inner, heads = site.width, config.inner, (config.heads, config.head_size)
        for name in "rkvg":
            setattr(self, f"x_{name}", nn.Parameter(torch.full((1, D), 0.5)))
        self.r, self.k, self.v, self.g = (nn.Linear(D, inner, bias=False) for _ in "rkvg")
        self.decay = nn.Parameter(torch.linspace(-6.0, 0.0, inner).view(heads))
        self.u = nn.Parameter(torch.full(heads, 0.5))
        self.norm_weight, self.norm_bias = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.zeros(inner))
        self.o = nn.Linear(inner, D, bias=False)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, c = step.ops, self.config
        before, last = shifted(x, state["last"], ops)
        change = ops.sub(before, x)
        mixes: list[Tensor] = [getattr(self, f"x_{name}") for name in "rkvg"]
        layers = (self.r, self.k, self.v, self.g)
        r, k, v, g = (
            ops.linear(mixed(x, change, mix, ops), layer.weight, None) for mix, layer in zip(mixes, layers, strict=True)
        )
        (earlier_k, last_k), (earlier_v, last_v) = (
            shifted(rows, state[f"last_{name}"], ops) for name, rows in (("k", k), ("v", v))
        )
        r, k, v, earlier_k, earlier_v = (ops.split_heads(rows, c.heads) for rows in (r, k, v, earlier_k, earlier_v))
        log_gate = ops.mul(ops.exp(ops.reshape(ops.parameter(self.decay), (1, c.heads, 1, c.head_size))), -1.0)
        o, _, S, _ = ops.linear_attention(r, earlier_k, earlier_v, state["S"], None, log_gate)
        own = ops.mul(ops.mul(r, k), ops.reshape(ops.parameter(self.u), (c.heads, 1, c.head_size)))
        o = ops.add(o, ops.mul(ops.mul(ops.mean(own), float(c.head_size)), v))
        y = group_norm(ops.merge_heads(o), self.norm_weight, self.norm_bias, c.norm_eps, c.heads, ops)
        states = {"last": last, "last_k": last_k, "last_v": last_v, "S": S}
        return ops.linear(ops.mul(y, ops.silu(g)), self.o.weight, None), states

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        rows = [last_row(self.width), *(last_row(c.inner, f"last_{name}") for name in "kv")]
        return [*rows, StateSpec("S", "float32", (BATCH, c.heads, c.head_size, c.head_size))]
