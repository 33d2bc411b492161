"""How recurrent families compute the share of the state that a token keeps, as log g <= 0."""

from __future__ import annotations

import math

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
    """dt = softplus(logits + dt_bias), within `limits`; log g = -exp(A_log) · dt.

    One number a head for Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) and gated delta nets (Yang et al. 2024, arXiv
    2412.06464), one a key channel for KDA (Kimi Team 2025, arXiv 2510.26692). Prompt and step share the limits.

    Args:
        logits: rows (N, heads · n). A_log: (heads), or any shape of so many numbers. dt_bias: (heads · n).

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


def sigmoid_decay(logits: T, heads: int, ops: Ops[T]) -> T:
    """log g = -e^-½ · sigmoid(logits) of RWKV-7 (Peng et al. 2025, arXiv 2503.14456): g is above 0.545.

    Args:
        logits: rows (N, heads · K).

    Returns:
        (B, heads, T, K).
    """
    return ops.mul(ops.sigmoid(ops.split_heads(logits, heads)), -math.exp(-0.5))


def before_decay(read: T, log_gate: T, ops: Ops[T]) -> T:
    """What reads the decayed state as `read` reads the state before, for a decay that is never near 0: `Erase.read` of
    RWKV-7. read and log_gate: (B, G, T, K)."""
    return ops.mul(read, ops.exp(ops.mul(log_gate, -1.0)))


def rg_lru(u: T, input_logits: T, decay_logits: T, rate: Tensor, first: T | None, state: T, ops: Ops[T]) -> tuple[T, T]:
    """The real-gated linear recurrent unit (De et al. 2024, arXiv 2402.19427, eq. 1 to 4).

        log a = -8 · sigmoid(decay_logits) · softplus(rate)      y_t = a y_{t-1} + √(1 - a²) sigmoid(input_logits) u

    Args:
        u, input_logits, decay_logits: rows (N, D). rate: (D).
        first: rows (N, 1), 1 for the first token of a text, whose input stands for itself, else 0; None: none is one.
        state: y before, (B, D); zeros before the first token.

    Returns:
        y, rows (N, D), and y after the last token (B, D).
    """
    rates = ops.mul(ops.softplus(ops.parameter(rate)), -8.0)
    log_gate = ops.mul(ops.sigmoid(decay_logits), rates)
    entering = ops.sqrt(
        ops.mul(ops.expm1(ops.mul(log_gate, 2.0)), -1.0)
    )  # 1 - a² would lose what a long memory lets in
    if first is not None:
        entering = ops.add(entering, ops.mul(ops.sub(1.0, entering), first))
    x = ops.mul(ops.mul(u, ops.sigmoid(input_logits)), entering)
    return ops.linear_recurrence(x, log_gate, state)


def block_linear(x: T, weight: Tensor, bias: Tensor, ops: Ops[T]) -> T:
    """A block-diagonal projection of rows x (N, blocks · I): weight (blocks, I, O), bias (blocks, O)."""
    blocks = weight.shape[0]
    y = ops.matmul(ops.split_heads(x, blocks), ops.parameter(weight))  # (B, blocks, T, O)
    return ops.add(ops.merge_heads(y), ops.reshape(ops.parameter(bias), (bias.numel(),)))


def skip(o: T, x: T, D: Tensor, ops: Ops[T]) -> T:
    """o + D ⊙ x of Mamba-2: o and x (B, H, T, V), D (H), or (H · V) as one number a channel."""
    return ops.add(o, ops.mul(x, ops.reshape(ops.parameter(D), (x.shape[1], 1, -1))))
