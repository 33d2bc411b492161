"""A mixture of experts in operators: a router chooses feed-forwards for each token.

A step gathers the weights of the chosen experts only. With many tokens, which together choose all experts, every expert
runs on all tokens, and experts that a token has not chosen get weight 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from t2r_export.model.activations import activate
from t2r_export.model.primitives import Primitives, T


class Experts(NamedTuple):
    """E feed-forwards without biases, E(x) = down(act(up x)), or down(act(gate x) ⊙ up x) if gated, and the options of
    their router."""

    up: Tensor  # (E, F, D), or (E, 2·F, D) with rows of gate and up interleaved
    down: Tensor  # (E, D, F)
    top: int  # experts per token
    renormalize: bool  # divide the weights of the chosen experts by their sum
    activation: str
    gated: bool
    router: str = "softmax"  # from scores to weights; softmax or sigmoid
    choice_bias: Tensor | None = None  # (E,), added to the weights only for the choice
    scale: float = 1.0  # factor of the weights
    eps: float = 0.0  # added to the sum when renormalizing


def weights_of(scores: T, experts: Experts, ops: Primitives[T]) -> tuple[T, T]:
    """Scores (N, E) -> weights and indices of the chosen experts, (N, top) each."""
    if experts.router == "softmax" and experts.choice_bias is None:
        best, chosen = ops.top_k(scores if experts.renormalize else ops.softmax(scores), experts.top)
        weights = ops.softmax(best) if experts.renormalize else best
    else:
        weights, chosen = _by_each(scores, experts, ops)
    return weights if experts.scale == 1 else ops.mul(weights, experts.scale), chosen


def _by_each(scores: T, experts: Experts, ops: Primitives[T]) -> tuple[T, T]:
    """DeepSeek-V3's router (arXiv 2412.19437, eq. 12 to 16): a load-balancing bias affects only the choice."""
    each = ops.sigmoid(scores) if experts.router == "sigmoid" else ops.softmax(scores)
    if experts.choice_bias is None:
        weights, chosen = ops.top_k(each, experts.top)
    else:
        _, chosen = ops.top_k(ops.add(each, ops.parameter(experts.choice_bias)), experts.top)
        weights = ops.gather(each, chosen)
    return ops.div(weights, ops.add(total(weights, ops), experts.eps)) if experts.renormalize else weights, chosen


def total(weights: T, ops: Primitives[T]) -> T:
    """Sums of rows (N, top) -> (N, 1)."""
    return ops.mul(ops.mean(weights), float(weights.shape[1]))


def of_each(weights: T, chosen: T, experts: Experts, ops: Primitives[T]) -> T:
    """Weights of the chosen experts (N, top) -> of all (N, 1, E), 0 for the others."""
    count = experts.down.shape[0]
    eye = ops.constant(np.eye(count), "float32", f"eye_{count}")
    return ops.matmul(ops.reshape(weights, (0, 1, experts.top)), ops.embedding(chosen, eye))


def chosen_experts(x: T, scores: T, experts: Experts, ops: Primitives[T]) -> T:
    """Rows x (N, D) through the chosen experts, with gathered weights."""
    weights, chosen = weights_of(scores, experts, ops)
    top, width = experts.top, x.shape[1]
    hidden = ops.matmul(ops.embedding(chosen, experts.up), ops.reshape(x, (0, 1, width, 1)))
    hidden = _activated(ops.reshape(hidden, (0, top * experts.up.shape[1], 1)), experts, ops)
    hidden = ops.reshape(hidden, (0, top, experts.down.shape[2], 1))
    each = ops.matmul(ops.embedding(chosen, experts.down), hidden)  # (N, top, D, 1)
    y = ops.matmul(ops.reshape(weights, (0, 1, top)), ops.reshape(each, (0, top, width)))
    return ops.reshape(y, (0, width))


def all_experts(x: T, scores: T, experts: Experts, ops: Primitives[T]) -> T:
    """Rows x (N, D) through all experts; those that a row has not chosen have weight 0."""
    weights, chosen = weights_of(scores, experts, ops)
    count, width, _ = experts.down.shape
    hidden = _activated(ops.matmul(ops.parameter(experts.up), ops.transpose(x, (1, 0))), experts, ops)  # (E, F, N)
    hidden = ops.mul(hidden, ops.transpose(of_each(weights, chosen, experts, ops), (2, 1, 0)))
    each = ops.matmul(ops.parameter(experts.down), hidden)  # (E, D, N)
    ones = ops.constant(np.ones((1, count)), "float32", f"ones_{count}")
    return ops.transpose(ops.reshape(ops.matmul(ones, ops.reshape(each, (count, -1))), (width, -1)), (1, 0))


def _activated(hidden: T, experts: Experts, ops: Primitives[T]) -> T:
    """Products with `up` (i, j or 2·j, n) -> (i, j, n). Uses at most four axes, the limit of NPUs."""
    if not experts.gated:
        return activate(hidden, experts.activation, ops)
    rows = hidden.shape[1] // 2
    gate, up = ops.split(ops.reshape(hidden, (0, rows, 2, -1)), [1, 1], axis=2)
    gate, up = (ops.reshape(part, (0, rows, -1)) for part in (gate, up))
    return ops.mul(activate(gate, experts.activation, ops), up)
