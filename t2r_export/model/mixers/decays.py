"""Decays and skip connections of recurrent families."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from t2r_export.model.ops import Ops, T


def softplus_decay(
    logits: T,
    A_log: Tensor,
    dt_bias: Tensor,
    heads: int,
    ops: Ops[T],
    limits: tuple[float, float] = (0.0, math.inf),
) -> tuple[T, T]:
    """dt = clamp(softplus(logits + dt_bias)); log g = -exp(A_log) · dt.

    Per head in Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) and gated delta nets (Yang et al. 2024, arXiv 2412.06464),
    per key channel in KDA (Kimi Team 2025, arXiv 2510.26692).

    Args:
        logits: rows (N, heads · n).
        A_log: `heads` elements of any shape.
        dt_bias: (heads · n).
        limits: of dt.

    Returns:
        log g and dt, each (B, heads, T, n).
    """
    dt = ops.softplus(ops.add(logits, ops.parameter(dt_bias)))
    low, high = limits
    dt = ops.maximum(dt, low) if low > 0 else dt
    dt = ops.minimum(dt, high) if high < math.inf else dt
    dt = ops.split_heads(dt, heads)
    rate = ops.mul(ops.exp(ops.reshape(ops.parameter(A_log), (heads, 1, 1))), -1.0)
    return ops.mul(dt, rate), dt


def inverse_softplus(y: Tensor) -> Tensor:
    """The bias for an initial dt of y."""
    return y + torch.log(-torch.expm1(-y))


def skip(o: T, x: T, D: Tensor, ops: Ops[T]) -> T:
    """o + D ⊙ x of Mamba-2: o and x (B, H, T, V), D (H) or (H · V)."""
    return ops.add(o, ops.mul(x, ops.reshape(ops.parameter(D), (x.shape[1], 1, -1))))


def sigmoid_decay(logits: T, heads: int, ops: Ops[T]) -> T:
    """log g = -e^-½ · sigmoid(logits) of RWKV-7 (Peng et al. 2025, arXiv 2503.14456): g is above 0.545.

    Args:
        logits: rows (N, heads · K).

    Returns:
        (B, heads, T, K).
    """
    return ops.mul(ops.sigmoid(ops.split_heads(logits, heads)), -math.exp(-0.5))


def log_sigmoid_decay(logits: T, divisor: float, heads: int, ops: Ops[T]) -> T:
    """log g = log(sigmoid(logits)) / divisor of GLA (Yang et al. 2024, arXiv 2312.06635, section 4.4).

    Args:
        logits: rows (N, heads · K).

    Returns:
        (B, heads, T, K).
    """
    return ops.mul(ops.log_sigmoid(ops.split_heads(logits, heads)), 1.0 / divisor)


def fixed_shares(heads: int) -> Tensor:
    """1 - g = 2^(-5-i) for head i (RetNet: Sun et al. 2023, arXiv 2307.08621, section 2.3), float64 (1, heads, 1, 1).

    On the CPU, so that models on the meta device have values.
    """
    return 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64, device="cpu")).view(1, heads, 1, 1)


def before_decay(read: T, log_gate: T, ops: Ops[T]) -> T:
    """`Erase.read` of RWKV-7: the vector that reads from the decayed state what `read` reads before the decay, which is
    never near 0. read and log_gate: (B, G, T, K)."""
    return ops.mul(read, ops.exp(ops.mul(log_gate, -1.0)))
