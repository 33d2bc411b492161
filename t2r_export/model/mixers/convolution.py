"""A short causal convolution over the channels of a layer: what each of them was a few tokens ago, weighted and summed.

    y_t = Σ_j w_j ⊙ x_{t-n+1+j}    j = 0 … n-1, w (n, channels)

Depthwise: a channel sees itself alone (H3, Fu et al. 2022, arXiv 2212.14052, section 3; Gated DeltaNet, Yang et al.
2024, arXiv 2412.06464, section 3.4). In linear attention it stands behind the affine part of φ, on the arguments of
its activation and on v, so that W_φ still folds into the projections (Kasai et al. 2021, eq. 8). It starts as the
identity: a swapped layer is at first the one without it.

The state is the last n - 1 inputs. They begin as zeros, as if a text began with tokens that say nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import nn

from t2r_export.model.ops import Ops, T
from t2r_runtime.signature import BATCH, StateSpec


class ShortConvolution(nn.Module):
    """n taps over parts that lie side by side, of `sizes` channels in all: heads · numbers of each part."""

    def __init__(self, taps: int, sizes: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.taps, self.sizes = taps, tuple(sizes)
        self.channels = sum(heads * size for heads, size in sizes)
        self.weight = nn.Parameter(torch.zeros(taps, self.channels))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The identity."""
        self.weight.zero_()[-1] = 1.0

    def state_spec(self) -> StateSpec:
        return StateSpec("conv", "float32", (BATCH, 1, self.taps - 1, self.channels))

    def forward(self, parts: Sequence[T], past: T, ops: Ops[T]) -> tuple[list[T], T]:
        """parts, each (B, heads, T, size), and the state before -> the same, and the state after."""
        rows = ops.concat([ops.merge_heads(part) for part in parts])  # (N, channels)
        joined = ops.concat([past, ops.split_heads(rows, 1)], axis=2)  # (B, 1, n - 1 + T, channels)
        weights = ops.split(ops.parameter(self.weight), [1] * self.taps, axis=0)
        terms = [ops.mul(x, weight) for x, weight in zip(self._shifted(joined, ops), weights, strict=True)]
        y = functools.reduce(ops.add, terms)
        cut = ops.split(ops.merge_heads(y), [heads * size for heads, size in self.sizes])
        after = ops.kept_buffer(joined, self.taps - 1)
        return [ops.split_heads(part, heads) for part, (heads, _) in zip(cut, self.sizes, strict=True)], after

    def _shifted(self, joined: T, ops: Ops[T]) -> list[T]:
        """What each tap sees of (B, 1, n - 1 + T, channels), oldest first."""
        if not ops.many:
            return ops.split(joined, [1] * self.taps, axis=2)
        last = self.taps - 1
        inner = [ops.drop_last(ops.slice_from(joined, j), last - j) for j in range(last)]
        return [*inner, ops.slice_from(joined, last)]
