"""Norms of recurrent families, over rows (N, groups · C): one group a head, or a few over the width of a layer.

They stay composed for every target: ONNX Runtime fuses most of these nodes into one, and its GatedRMSNorm (1.31 and
1.32, CPU) took 8 times as long for 16 heads of 128.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from t2r_export.model.ops import Ops, T


def l2_norm(x: T, eps: float, ops: Ops[T], scale: float = 1.0) -> T:
    """scale · x / √(Σx² + eps) over the last axis (Yang et al. 2024, arXiv 2412.06464, section 3.4)."""
    n = x.shape[-1]
    # a row of scales, not a number: ONNX Runtime then fuses the whole into one norm
    scales = ops.constant([scale * n**-0.5] * n, "float32", f"l2_scale_{n}_{scale}")
    return ops.mul(ops.rms_norm(x, None, eps / n), scales)


def grouped_rms_norm(x: T, weight: Tensor, eps: float, groups: int, ops: Ops[T]) -> T:
    """Divide each group by its root mean square, then scale.

    Args:
        x: rows (N, groups · C). weight: (groups · C), or (C) for all groups.
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
    activation: Literal["silu", "sigmoid"] = "silu",
    gate_first: bool = False,
) -> T:
    """norm(x) ⊙ act(gate) (gated delta nets, KDA), or norm(x ⊙ act(gate)) (Mamba-2: Dao and Gu 2024, arXiv 2405.21060).

    Args:
        x, gate: rows (N, groups · C). weight: (groups · C), or (C) for all groups.
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
