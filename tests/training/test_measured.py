"""Measured operations of attention in training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from t2r_export.training.measured import Measured, attention_flops

B, T, N, K, V = 2, 5, 7, 4, 3
HEADS = [(6, 6), (6, 2), (6, 1)]  # query heads, key heads


def shaped(heads: int, key_heads: int) -> tuple[torch.Tensor, ...]:
    """q, k, v and the gradient of the output."""
    shapes = (B, heads, T, K), (B, key_heads, N, K), (B, key_heads, N, V), (B, heads, T, V)
    return tuple(torch.randn(shape) for shape in shapes)


@pytest.mark.parametrize("heads, key_heads", HEADS)
def test_attention_is_counted_by_its_products(heads: int, key_heads: int) -> None:
    q, k, v, gradient = shaped(heads, key_heads)
    scores, values = (2 * B * heads * T * N * size for size in (K, V))  # products q·k and weights·v
    assert attention_flops((q, k, v, None), backward=False) == scores + values
    # recomputed scores, dq and dk; d(weights) and dv
    assert attention_flops((gradient, q, k, v, None), backward=True) == 3 * scores + 2 * values


def test_equal_heads_are_counted_as_torch_does() -> None:
    q, k, v, gradient = shaped(6, 6)
    assert attention_flops((q, k, v), False) == sdpa_flop_count(q.shape, k.shape, v.shape)
    theirs = sdpa_backward_flop_count(gradient.shape, q.shape, k.shape, v.shape)
    assert attention_flops((gradient, q, k, v), True) == theirs


@pytest.mark.parametrize("heads, key_heads", HEADS)
def test_torchs_attention_is_measured(heads: int, key_heads: int) -> None:
    """torch's CPU kernel, forward and backward; it needs values of the keys' size."""
    q, k, _, gradient = shaped(heads, key_heads)
    gradient = torch.zeros(*gradient.shape[:-1], K)
    sides: list[Any] = [side.requires_grad_() for side in (q, k, torch.randn_like(k))]
    with Measured() as measured:
        found = F.scaled_dot_product_attention(*sides, enable_gqa=heads != key_heads)
        forward = measured.flops
        found.backward(gradient)
    product = 2 * B * heads * T * N * K
    assert (forward, measured.flops) == (2 * product, 7 * product)
