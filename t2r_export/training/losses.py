"""The losses of the stages: distances between a student and its teacher, and cross-entropy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SMALLEST = 1e-30  # of a share that is divided by: it may underflow
PIECE = 1 << 22  # numbers in float32 at a time: a processor's caches hold them, and they keep a GPU busy


class Divergence(torch.autograd.Function):
    """KL(p ‖ q), mean over tokens, of logits (N, vocabulary): q's from the student, p's from the teacher.

    Its gradient for q's logits is (q - p)/N. A custom function because autograd keeps several tensors of the size of
    the logits until the backward pass, the largest tensors with a large vocabulary, and takes twice as long. Softmax is
    taken of PIECE numbers at a time, so that none of that size is in float32 unless the logits are.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        wide = _wide(logits)
        gradient, loss = torch.empty_like(logits), logits.new_zeros((), dtype=wide)
        for rows in _pieces(logits):
            log_p, log_q = F.log_softmax(target[rows], -1, dtype=wide), F.log_softmax(logits[rows], -1, dtype=wide)
            p = log_p.exp()
            loss += log_p.sub_(log_q).mul_(p).sum()
            gradient[rows] = log_q.exp_().sub_(p).div_(len(logits))
        ctx.save_for_backward(gradient)
        return loss / len(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return difference * gradients[0], None


class CrossEntropy(torch.autograd.Function):
    """Mean over tokens of -log q of the label, of logits (N, vocabulary), the label's probability smoothed.

    Its gradient is (q - p)/N, where p is smoothing / vocabulary everywhere, and 1 - smoothing more at the label. A
    custom function for the reasons of Divergence, and by pieces as well.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        n, vocabulary = logits.shape
        wide = _wide(logits)
        gradient, loss = torch.empty_like(logits), logits.new_zeros((), dtype=wide)
        for rows in _pieces(logits):
            log_q, label = F.log_softmax(logits[rows], -1, dtype=wide), labels[rows, None]
            loss -= (1 - smoothing) * log_q.gather(1, label).sum() + smoothing / vocabulary * log_q.sum()
            difference = log_q.exp_().sub_(smoothing / vocabulary)
            difference.scatter_add_(1, label, difference.new_full(label.shape, smoothing - 1))
            gradient[rows] = difference.div_(n)
        ctx.save_for_backward(gradient)
        return loss / n

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (difference,) = ctx.saved_tensors
        return difference * gradients[0], None, None


class TopDivergence(torch.autograd.Function):
    """KL(p ‖ q), mean over tokens, of K + 1 outcomes: the teacher's K most likely tokens, and any other token.

    For q's logits (N, vocabulary), and of p the K probabilities (N, K), their places (N, K) and the sum of the rest
    (N). The bucket keeps p and q distributions: were both renormalised over the K, the student could give the rest any
    share for nothing; were the K taken as they are, it would learn to be surer than its teacher (Anshumann et al. 2025,
    arXiv 2503.16870, on what the largest alone teach). Never more than the KL of all tokens, and the same where K is
    the vocabulary.

    Its gradient is (q - p)/N for the K, and q·(1 - rest of p / rest of q)/N for the others. Beside the student's logits
    it needs one tensor of their size, and none of the teacher.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, p: Tensor, places: Tensor, rest: Tensor) -> Tensor:
        log_q = F.log_softmax(logits, -1, dtype=_wide(logits))
        log_kept, q = log_q.gather(-1, places), log_q.exp_()
        rest_q = q.scatter_(-1, places, 0.0).sum(-1).clamp(min=SMALLEST)
        loss = (torch.xlogy(p, p) - p * log_kept).sum() + (torch.xlogy(rest, rest) - rest * rest_q.log()).sum()
        q.mul_((1 - rest / rest_q).unsqueeze(-1)).scatter_(-1, places, log_kept.exp() - p)
        ctx.save_for_backward(q.div_(len(logits)).to(logits.dtype))
        return loss / len(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (difference,) = ctx.saved_tensors
        return difference * gradients[0], None, None, None


def divergence_target(logits: Tensor, top: int) -> tuple[Tensor, ...]:
    """What `divergence` compares with, from a teacher's logits (N, vocabulary): those, where `top` is 0, or its `top`
    largest probabilities, with which the logits need not be kept."""
    if not top:
        return (logits,)
    p = F.softmax(logits, -1, dtype=_wide(logits))
    largest, places = p.topk(min(top, p.shape[-1]), sorted=False)
    return largest, places, p.scatter_(-1, places, 0.0).sum(-1)


def divergence(logits: Tensor, target: tuple[Tensor, ...]) -> Tensor:
    """KL of a student's logits (N, vocabulary) from what `divergence_target` gave, a scalar."""
    kind = Divergence if len(target) == 1 else TopDivergence
    loss: Tensor = kind.apply(logits, *target)
    return loss


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Rows of logits (N, vocabulary), PIECE numbers at a time."""
    rows = max(1, PIECE // logits.shape[1])
    return (slice(first, first + rows) for first in range(0, len(logits), rows))


def _wide(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


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


def next_token_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy, mean over tokens, of logits (N, vocabulary) and labels (N,).

    With `smoothing`, that much of the label's probability is spread over all tokens (Szegedy et al. 2016, arXiv
    1512.00567, section 7).
    """
    loss: Tensor = CrossEntropy.apply(logits, labels, smoothing)
    return loss
