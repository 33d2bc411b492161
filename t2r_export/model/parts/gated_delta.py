"""Delta rules: DeltaNet (Yang et al. 2024, arXiv 2406.06484), gated delta nets (Yang et al. 2024, arXiv 2412.06464, as
in Qwen3.5 and Olmo-Hybrid) and Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692).

    q, k, v = silu(conv(W x))         q̂ = l2(q) / √K         k̂ = l2(k)         β = σ(W_b x)
    S_t = D_t S_{t-1} + β k̂ (v - (D_t S_{t-1})ᵀ k̂)ᵀ          y = W_o (norm(Sᵀ q̂) ⊙ act(z))

    DeltaNet              D = 1                                              z = W_z x
    gated delta net       D = exp(-exp(A) softplus(W_a x + b)), per head     z = W_z x
    KDA                   the same per key channel, W_a x = A_2 A_1 x        z = Z_2 Z_1 x

With negative eigenvalues β = 2 σ(W_b x).
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.parts import DeltaNetConfig, KDAConfig
from t2r_export.model.mixers.decays import softplus_decay
from t2r_export.model.mixers.gates import Control
from t2r_export.model.mixers.norms import l2_norm
from t2r_export.model.ops import Ops, T
from t2r_export.model.parts.linear import LinearPart
from t2r_export.model.step import Step

L2_EPS = 1e-6  # added under the root


class DeltaNet(LinearPart):
    """The delta rule without a decay."""

    config: DeltaNetConfig

    def beside(self) -> dict[str, int]:
        return {**super().beside(), "b": self.config.heads}

    def features(self, q: T, k: T, step: Step[T]) -> tuple[T, T]:
        return l2_norm(q, L2_EPS, step.ops, self.config.key_size**-0.5), l2_norm(k, L2_EPS, step.ops)

    def control(self, beside: dict[str, T], ops: Ops[T]) -> Control[T]:
        beta = ops.sigmoid(ops.split_heads(beside["b"], self.config.heads))
        return Control(None, ops.mul(beta, 2.0) if self.config.allow_neg_eigval else beta)


class GatedDelta(DeltaNet):
    """The delta rule with a decay per head."""

    A_log: nn.Parameter
    dt_bias: nn.Parameter

    def beside(self) -> dict[str, int]:
        return {**super().beside(), "a": self.config.heads}

    def build(self) -> None:
        self.A_log = nn.Parameter(torch.linspace(1.0, 16.0, self.config.heads).log())
        self.dt_bias = nn.Parameter(torch.ones(self._decays()))

    def _decays(self) -> int:
        """Number of decays."""
        return self.config.heads

    def control(self, beside: dict[str, T], ops: Ops[T]) -> Control[T]:
        log_gate, _ = softplus_decay(self._logits(beside, ops), self.A_log, self.dt_bias, self.config.heads, ops)
        return Control(log_gate, super().control(beside, ops).beta)

    def _logits(self, beside: dict[str, T], ops: Ops[T]) -> T:
        return beside["a"]


class KDA(GatedDelta):
    """The delta rule with a decay per key channel; decays and the output gate are of low rank."""

    config: KDAConfig

    def beside(self) -> dict[str, int]:
        c = self.config
        return {**({} if c.gate == "none" else {"z1": c.gate_rank}), "b": c.heads, "a1": c.decay_rank}

    def build(self) -> None:
        super().build()
        c = self.config
        self.a2 = nn.Linear(c.decay_rank, self._decays(), bias=False)
        if c.gate != "none":
            self.z2 = nn.Linear(c.gate_rank, c.inner, bias=c.gate_bias)

    def _decays(self) -> int:
        return self.config.heads * self.config.key_size

    def keyed(self) -> tuple[str, ...]:
        return "a2.weight", "dt_bias"

    def _logits(self, beside: dict[str, T], ops: Ops[T]) -> T:
        return ops.linear(beside["a1"], self.a2.weight, None)

    def gate(self, beside: dict[str, T], ops: Ops[T]) -> T:
        return ops.linear(beside["z1"], self.z2.weight, self.z2.bias)
