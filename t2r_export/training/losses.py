"""The losses of the stages: distances between a student and its teacher, and cross-entropy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Divergence(torch.autograd.Function):
    """KL(p ‖ q), mean over tokens, of logits (N, vocabulary): q's from the student, p's from the teacher.

    Its gradient for q's logits is (q - p)/N. A custom function because autograd keeps several tensors of the size of
    the logits until the backward pass, the largest tensors with a large vocabulary, and takes twice as long.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        log_p, log_q = F.log_softmax(target, -1, dtype=wide), F.log_softmax(logits, -1, dtype=wide)
        p = log_p.exp()
        loss = log_p.sub_(log_q).mul_(p).sum() / len(logits)
        ctx.save_for_backward(log_q.exp_().sub_(p).div_(len(logits)).to(logits.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return difference * gradients[0], None


def variance(samples: Iterable[Sequence[Tensor]]) -> Tensor:
    """Variance of each layer's outputs over all tokens, mean over the width: samples × layers of (T, D) -> (layers).

    Accumulated over single windows, so that it needs no more memory than training, and is the same for any number of
    processes.
    """
    sums = []
    for sample in samples:
        wide = [y.double() for y in sample]
        sums.append(torch.stack([torch.stack([y.mean(0), y.square().mean(0)]) for y in wide]))
    mean, square = torch.stack(sums).mean(0).unbind(1)  # (layers, D) each
    return (square - mean.square()).mean(1).clamp(min=1e-12)


def squared_error(found: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference, in float32."""
    return (found.float() - target.float()).square().mean()


def next_token_loss(logits: Tensor, windows: Tensor) -> Tensor:
    """Cross-entropy, mean over tokens, of logits (B, T, vocabulary) and windows (B, T+1), whose last T it predicts."""
    return F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())
