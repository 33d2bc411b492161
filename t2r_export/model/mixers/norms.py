"""Norms of the last axis, and grouped norms of recurrent families over rows (N, groups · C).

Grouped norms are composed for every target: ONNX Runtime fuses most of the nodes, and its GatedRMSNorm (1.31 and 1.32,
CPU) took 8 times as long for 16 heads of 128.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.norm import NormConfig
from t2r_export.model.ops import Ops, T


class Norm(nn.Module):
    """Layer norm, RMS norm, or the identity without a config."""

    def __init__(self, config: NormConfig | None, size: int) -> None:
        super().__init__()
        self.eps = 0.0 if config is None else config.eps
        self.weight = None if config is None else nn.Parameter(torch.ones(size))
        layer = config is not None and config.kind == "layer"
        self.bias = nn.Parameter(torch.zeros(size)) if layer else None

    def forward(self, x: T, ops: Ops[T]) -> T:
        """x (…, size), normalized over the last axis."""
        if self.weight is None:
            return x
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


def l2_norm(x: T, eps: float, ops: Ops[T], scale: float = 1.0) -> T:
    """scale · x / √(Σx² + eps) over the last axis (Yang et al. 2024, arXiv 2412.06464, section 3.4)."""
    n = x.shape[-1]
    # a vector of scales, because ONNX Runtime fuses it into the norm
    scales = ops.constant([scale * n**-0.5] * n, "float32", f"l2_scale_{n}_{scale}")
    return ops.mul(ops.rms_norm(x, None, eps / n), scales)


def grouped_rms_norm(x: T, weight: Tensor, eps: float, groups: int, ops: Ops[T]) -> T:
    """RMS norm of each group.

    Args:
        x: rows (N, groups · C). weight: (groups · C), or (C) shared by all groups.
    """
    width = x.shape[-1]
    size = width // groups
    apart = ops.reshape(x, (0, groups, size)) if groups > 1 else x
    shared = weight.numel() == size
    normed = ops.rms_norm(apart, weight if shared else None, eps)
    normed = ops.reshape(normed, (0, width)) if groups > 1 else normed
    return normed if shared else ops.mul(normed, ops.parameter(weight))


def gated_rms_norm(
    x: T,
    gate: T,
    weight: Tensor,
    eps: float,
    groups: int,
    ops: Ops[T],
    activation: str = "silu",
    gate_first: bool = False,
) -> T:
    """norm(x) ⊙ act(gate) (gated delta nets, KDA), or norm(x ⊙ act(gate)) (Mamba-2: Dao and Gu 2024, arXiv 2405.21060).

    Args:
        x, gate: rows (N, groups · C). weight: (groups · C), or (C) for all groups.
        activation: silu or sigmoid.
    """
    opening = ops.silu(gate) if activation == "silu" else ops.sigmoid(gate)
    if gate_first:
        return grouped_rms_norm(ops.mul(x, opening), weight, eps, groups, ops)
    return ops.mul(grouped_rms_norm(x, weight, eps, groups, ops), opening)


def group_norm(x: T, weight: Tensor, bias: Tensor, eps: float, groups: int, ops: Ops[T]) -> T:
    """Each group with mean 0 and variance 1, then scaled and shifted (Wu and He 2018, arXiv 1803.08494).

    Args:
        x: rows (N, groups · C). weight, bias: (groups · C).
    """
    width = x.shape[-1]
    apart = ops.reshape(x, (0, groups, width // groups))
    normed = ops.rms_norm(ops.sub(apart, ops.mean(apart)), None, eps)
    scaled = ops.mul(ops.reshape(normed, (0, width)), ops.parameter(weight))
    return ops.add(scaled, ops.parameter(bias))
