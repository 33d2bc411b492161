"""Recurrent layers of model families, written with our operators on transformers' weights.

Each block is a module with `run(rows, state, ops) -> rows, state` and its state shapes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from t2r_export.model.mixers.convolution import convolved
from t2r_export.model.mixers.decays import skip, softplus_decay
from t2r_export.model.mixers.norms import gated_rms_norm, l2_norm
from t2r_export.model.ops import Ops

States = dict[str, Any]


def randomised(module: nn.Module) -> nn.Module:
    """Replace all weights by small random values."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


class Block(nn.Module):
    """A recurrent layer over transformers' module.

    Args:
        peer: transformers' module.
        conv: its convolution, whose weight (C, 1, n) is stored as (n, C).
    """

    states: dict[str, tuple[int, ...]]
    width: int

    def __init__(self, peer: nn.Module, conv: nn.Conv1d | None = None) -> None:
        super().__init__()
        self.peer = randomised(peer)
        if conv is not None:
            self.taps = nn.Parameter(conv.weight[:, 0].T.contiguous())
            self.states = {"conv": (1, len(self.taps) - 1, self.taps.shape[1])}


class ShortConv(Block):
    """LFM2."""

    width = 10

    def __init__(self) -> None:
        from transformers.models.lfm2.modeling_lfm2 import Lfm2Config, Lfm2ShortConv

        config = Lfm2Config(hidden_size=10, num_hidden_layers=1, conv_L_cache=3, conv_bias=True, layer_types=["conv"])
        peer = Lfm2ShortConv(config, 0)
        super().__init__(peer, peer.conv)

    def run(self, x: Any, state: States, ops: Ops[Any]) -> tuple[Any, States]:
        m = self.peer
        b, c, u = ops.split(ops.linear(x, m.in_proj.weight, m.in_proj.bias), [self.width] * 3)
        y, after = convolved(ops.mul(b, u), state["conv"], self.taps, m.conv.bias, ops)
        return ops.linear(ops.mul(c, y), m.out_proj.weight, m.out_proj.bias), {"conv": after}


class GatedDelta(Block):
    """Qwen3.5: 3 key heads, 6 value heads, K = 5, V = 4."""

    width = 10

    def __init__(self) -> None:
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet, Qwen3_5TextConfig

        sizes = {"linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 5}
        config = Qwen3_5TextConfig(
            hidden_size=10, num_hidden_layers=1, linear_value_head_dim=4, layer_types=["linear_attention"], **sizes
        )
        peer = Qwen3_5GatedDeltaNet(config, 0)
        super().__init__(peer, peer.conv1d)
        self.states["S"] = (6, 5, 4)

    def run(self, x: Any, state: States, ops: Ops[Any]) -> tuple[Any, States]:
        m = self.peer
        packed, z, b, a = ops.linears(x, [[m.in_proj_qkv], [m.in_proj_z], [m.in_proj_b], [m.in_proj_a]])
        packed, conv = convolved(packed, state["conv"], self.taps, None, ops)
        q, k, v = ops.split(ops.silu(packed), [15, 15, 24])
        q = l2_norm(ops.split_heads(q, 3), 1e-6, ops, 5**-0.5)
        k = l2_norm(ops.split_heads(k, 3), 1e-6, ops)
        log_gate, _ = softplus_decay(a, m.A_log, m.dt_bias, 6, ops)
        beta = ops.sigmoid(ops.split_heads(b, 6))
        o, _, S, _ = ops.linear_attention(q, k, ops.split_heads(v, 6), state["S"], None, log_gate, beta)
        o = gated_rms_norm(ops.merge_heads(o), z, m.norm.weight, m.norm.variance_epsilon, 6, ops)
        return ops.linear(o, m.out_proj.weight, None), {"conv": conv, "S": S}


class Mamba2(Block):
    """6 heads of 4 channels, 3 groups of B and C, state size 5; dt is clamped on both sides."""

    width = 12
    limits = (0.3, 0.9)

    def __init__(self) -> None:
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

        sizes = {"hidden_size": 12, "num_heads": 6, "head_dim": 4, "state_size": 5, "n_groups": 3, "chunk_size": 4}
        config = Mamba2Config(num_hidden_layers=1, time_step_limit=self.limits, use_bias=True, **sizes)
        peer = Mamba2Mixer(config, 0)
        super().__init__(peer, peer.conv1d)
        self.states["S"] = (6, 5, 4)

    def run(self, x: Any, state: States, ops: Ops[Any]) -> tuple[Any, States]:
        m = self.peer
        z, packed, dt = ops.split(ops.linear(x, m.in_proj.weight, m.in_proj.bias), [24, 54, 6])
        packed, conv = convolved(packed, state["conv"], self.taps, m.conv1d.bias, ops)
        u, B, C = ops.split(ops.silu(packed), [24, 15, 15])
        u, k, q = ops.split_heads(u, 6), ops.split_heads(B, 3), ops.split_heads(C, 3)
        log_gate, dt = softplus_decay(dt, m.A_log, m.dt_bias, 6, ops, self.limits)
        o, _, S, _ = ops.linear_attention(q, k, ops.mul(u, dt), state["S"], None, log_gate)
        o = ops.merge_heads(skip(o, u, m.D, ops))
        o = gated_rms_norm(o, z, m.norm.weight, m.norm.variance_epsilon, 3, ops, gate_first=True)
        return ops.linear(o, m.out_proj.weight, m.out_proj.bias), {"conv": conv, "S": S}


class KDA(Block):
    """Kimi Linear: 3 heads of size 5, one decay per key channel."""

    width = 10

    def __init__(self) -> None:
        from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearConfig, KimiLinearDeltaAttention

        sizes = {"hidden_size": 10, "linear_num_heads": 3, "linear_head_dim": 5, "num_hidden_layers": 1}
        config = KimiLinearConfig(layer_types=["linear_attention"], mlp_layer_types=["dense"], **sizes)
        peer = KimiLinearDeltaAttention(config, 0)
        super().__init__(peer, peer.conv1d)
        self.states["S"] = (3, 5, 5)

    def run(self, x: Any, state: States, ops: Ops[Any]) -> tuple[Any, States]:
        m, f = self.peer, self.peer.forget_gate
        (packed,) = ops.linears(x, [[m.q_proj, m.k_proj, m.v_proj]])
        packed, conv = convolved(packed, state["conv"], self.taps, None, ops)
        q, k, v = (ops.split_heads(part, 3) for part in ops.split(ops.silu(packed), [15] * 3))
        q, k = l2_norm(q, 1e-6, ops, 5**-0.5), l2_norm(k, 1e-6, ops)
        decay, gate = (
            ops.linear(ops.linear(x, inner.weight, None), outer.weight, None)
            for inner, outer in ((f.f_a_proj, f.f_b_proj), (m.g_a_proj, m.g_b_proj))
        )
        log_gate, _ = softplus_decay(decay, f.A_log, f.dt_bias, 3, ops)
        beta = ops.sigmoid(ops.split_heads(ops.linear(x, m.b_proj.weight, None), 3))
        o, _, S, _ = ops.linear_attention(q, k, v, state["S"], None, log_gate, beta)
        weight, eps = m.o_norm.weight, m.o_norm.variance_epsilon
        o = gated_rms_norm(ops.merge_heads(o), gate, weight, eps, 3, ops, activation="sigmoid")
        return ops.linear(o, m.o_proj.weight, None), {"conv": conv, "S": S}


BLOCKS: dict[str, type[Block]] = {
    "lfm2": ShortConv,
    "qwen3_5": GatedDelta,
    "mamba2": Mamba2,
    "kda": KDA,
}
