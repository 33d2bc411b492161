"""Short causal depthwise convolutions.

    y_t = Σ_j w_j ⊙ x_{t-n+1+j}    j = 0 … n-1, w (n, channels)

See H3 (Fu et al. 2022, arXiv 2212.14052, section 3) and Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464, section
3.4). In linear attention it follows the affine part of φ and v, so that W_φ still folds (Kasai et al. 2021, eq. 8). It
is initialized as the identity, so that converted layers initially equal those without it.

The state is the last n - 1 inputs, initially zero. Each tap is a Mul and an Add over the last axis: for 6,144 channels
ONNX Runtime's CausalConvWithState (1.31 and 1.32, CPU) took 3 times as long, for 1 and for 256 tokens.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from t2r_export.model.ops import Ops, T
from t2r_runtime.contract.state_spec import BATCH, StateSpec


def convolved(rows: T, past: T, weight: Tensor, bias: Tensor | None, ops: Ops[T]) -> tuple[T, T]:
    """Convolve rows (N, channels); returns the result and the state after.

    Args:
        past: (B, 1, n - 1, channels), previous inputs.
        weight: (n, channels), oldest first.
        bias: (channels).
    """
    taps = len(weight)
    joined = ops.concat([past, ops.split_heads(rows, 1)], axis=2)  # (B, 1, n - 1 + T, channels)
    weights = ops.split(ops.parameter(weight), [1] * taps, axis=0)
    terms = [ops.mul(x, w) for x, w in zip(inputs_of_taps(joined, taps, ops), weights, strict=True)]
    y = ops.merge_heads(functools.reduce(ops.add, terms))
    y = y if bias is None else ops.add(y, ops.parameter(bias))
    return y, ops.kept_buffer(joined, taps - 1)


def inputs_of_taps(joined: T, taps: int, ops: Ops[T]) -> list[T]:
    """The inputs of each tap from (B, 1, n - 1 + T, channels), oldest first."""
    if not ops.many:
        return ops.split(joined, [1] * taps, axis=2)
    last = taps - 1
    inner = [ops.drop_last(ops.slice_from(joined, j), last - j) for j in range(last)]
    return [*inner, ops.slice_from(joined, last)]


def shifted(rows: T, past: T, ops: Ops[T]) -> tuple[T, T]:
    """The previous token's row: rows (N, D) and the last token before them (B, 1, 1, D) -> the same shapes.

    RWKV's token shift (Peng et al. 2023, arXiv 2305.13048); a convolution of the taps 1 and 0.
    """
    own = ops.split_heads(rows, 1)
    if not ops.many:
        return ops.merge_heads(past), own
    joined = ops.concat([past, own], axis=2)
    return ops.merge_heads(ops.drop_last(joined, 1)), ops.kept_buffer(joined, 1)


class ShortConvolution(nn.Module):
    """`convolved` with trained weights."""

    def __init__(self, taps: int, channels: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(taps, channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize as the identity."""
        self.weight.zero_()[-1] = 1.0

    def state_spec(self) -> StateSpec:
        taps, channels = self.weight.shape
        return StateSpec("conv", "float32", (BATCH, 1, taps - 1, channels))

    def forward(self, rows: T, past: T, ops: Ops[T]) -> tuple[T, T]:
        """Rows (N, channels) and the state before -> rows and the state after."""
        return convolved(rows, past, self.weight, self.bias, ops)
