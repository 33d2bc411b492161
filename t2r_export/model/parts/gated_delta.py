"""A gated delta net (Yang et al. 2024, arXiv 2412.06464), as in Qwen3.5 and Olmo-Hybrid.

    q, k, v = silu(conv(W x))    q̂ = l2(q) / √K    k̂ = l2(k)    β = σ(W_b x)    g = exp(-exp(A) softplus(W_a x + b))
    S_t = g S_{t-1} + β k̂ (v - g S_{t-1}ᵀ k̂)ᵀ               y = W_o (norm(Sᵀ q̂) ⊙ silu(W_z x))

With negative eigenvalues β = 2 σ(W_b x). Each key head serves H / key_heads consecutive value heads. The norm is per
head, with a scale shared by all heads.
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.parts import GatedDeltaConfig
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.mixers.decays import softplus_decay
from t2r_export.model.mixers.norms import gated_rms_norm, l2_norm
from t2r_export.model.ops import State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import BATCH, StateSpec

L2_EPS = 1e-6  # added under the root


class GatedDelta(Part):
    """Projections, convolution, delta rule, gated norm, output."""

    config: GatedDeltaConfig

    def __init__(self, site: Site, config: GatedDeltaConfig) -> None:
        super().__init__(site, config)
        H, channels = config.heads, sum(config.convolved)
        sizes = {"qkv": channels, "z": H * config.value_size, "b": H, "a": H}
        self.qkv, self.z, self.b, self.a = (nn.Linear(site.width, n, bias=False) for n in sizes.values())
        self.conv = ShortConvolution(config.taps, channels)
        self.A_log = nn.Parameter(torch.linspace(1.0, 16.0, H).log())
        self.dt_bias = nn.Parameter(torch.ones(H))
        self.norm_weight = nn.Parameter(torch.ones(config.value_size))
        self.o = nn.Linear(sizes["z"], site.width, bias=False)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, c = step.ops, self.config
        packed, z, b, a = ops.linears(x, [[self.qkv], [self.z], [self.b], [self.a]])
        packed, conv = self.conv(packed, state["conv"], ops)
        q, k, v = ops.split(ops.silu(packed), c.convolved)
        q = l2_norm(ops.split_heads(q, c.key_heads), L2_EPS, ops, c.key_size**-0.5)
        k = l2_norm(ops.split_heads(k, c.key_heads), L2_EPS, ops)
        log_gate, _ = softplus_decay(a, self.A_log, self.dt_bias, c.heads, ops)
        beta, v = ops.sigmoid(ops.split_heads(b, c.heads)), ops.split_heads(v, c.heads)
        beta = ops.mul(beta, 2.0) if c.allow_neg_eigval else beta
        o, _, S, _ = ops.linear_attention(q, k, v, state["S"], None, log_gate, beta)
        y = gated_rms_norm(ops.merge_heads(o), z, self.norm_weight, c.norm_eps, c.heads, ops)
        return ops.linear(y, self.o.weight, None), {"S": S, "conv": conv}

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        return [StateSpec("S", "float32", (BATCH, c.heads, c.key_size, c.value_size)), self.conv.state_spec()]
