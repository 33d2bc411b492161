"""Losses of the stages: divergences between student and teacher, and cross-entropy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.quality.evaluate import LOGITS

SMALLEST = 1e-30  # lower bound of a divisor that may underflow
PIECE = 1 << 22  # float32 values processed at a time: fits the caches of a CPU, keeps a GPU busy
LEAST_ROWS = 512  # minimum rows per piece; makes accumulating the head's gradient cheap in comparison

RowsLoss = Callable[[Tensor, slice], Tensor]


class _Loss(torch.autograd.Function):
    """Base of the losses: `forward` saves the gradient with respect to its first argument, the student's logits.

    Custom functions need half the time of autograd, which keeps several tensors of the size of the logits.
    """

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0], None, None, None  # torch ignores surplus None


class Divergence(_Loss):
    """KL(p ‖ q), mean over tokens, of logits (N, vocabulary): q's from the student, p's from the teacher.

    The gradient for q's logits is (q - p)/N. Softmax is computed in pieces: no float32 tensor has the size of the
    logits unless they are float32.
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


class CrossEntropy(_Loss):
    """Label-smoothed cross-entropy of logits (N, vocabulary), mean over tokens, computed in pieces.

    The gradient is (q - p)/N, where p is smoothing / vocabulary everywhere, plus 1 - smoothing at the label.
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


class TopDivergence(_Loss):
    """KL(p ‖ q), mean over tokens, of K + 1 outcomes: the teacher's K most likely tokens, and any other token.

    Takes q's logits (N, vocabulary), the K largest probabilities of p (N, K), their indices (N, K) and the remaining
    probability (N). Without the last outcome, renormalized probabilities would leave the rest unconstrained, and raw
    ones would make the student overconfident (Anshumann et al. 2025, arXiv 2503.16870). A lower bound of the full KL,
    equal to it where K is the vocabulary.

    The gradient is (q - p)/N for the K, and q·(1 - rest of p / rest of q)/N for the others. Needs one tensor of the
    size of the logits.
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


class OverRows(torch.autograd.Function):
    """Mean loss over rows (N, D), in pieces whose gradients are computed at once: see `over_rows`."""

    @staticmethod
    def forward(ctx: Any, loss: RowsLoss, pieces: Sequence[slice], rows: Tensor, *weights: Tensor) -> Tensor:
        total = rows.new_zeros((), dtype=_wide(rows))
        sums = [torch.zeros_like(each) for each in (rows, *weights)]
        for piece in pieces:
            with torch.enable_grad():
                x = rows[piece].detach().requires_grad_()
                part = loss(x, piece) * (len(x) / len(rows))
            with torch.autocast(rows.device.type, enabled=False):
                of_rows, *of_weights = torch.autograd.grad(part, [x, *weights])
            total += part.detach()
            sums[0][piece] = of_rows
            for summed, gradient in zip(sums[1:], of_weights, strict=True):
                summed += gradient
        ctx.save_for_backward(*sums)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(each * gradients[0] for each in ctx.saved_tensors)


def over_rows(loss: RowsLoss, rows: Tensor, vocabulary: int, weights: Sequence[Tensor]) -> Tensor:
    """Mean of a loss over rows (N, D), with exact gradients; holds at most LOGITS logits, or those of LEAST_ROWS rows.

    Args:
        loss: (rows (n, D), their slice of N) -> mean loss of their logits (n, vocabulary).
        weights: trained weights used by `loss`.
    """
    size = rows_at_once(vocabulary)
    if len(rows) <= size:
        return loss(rows, slice(len(rows)))
    pieces = [slice(first, first + size) for first in range(0, len(rows), size)]
    if torch.is_grad_enabled():
        mean: Tensor = OverRows.apply(loss, pieces, rows, *weights)
        return mean
    return torch.stack([loss(x := rows[piece], piece) * (len(x) / len(rows)) for piece in pieces]).sum()


def rows_at_once(vocabulary: int) -> int:
    """Number of rows whose logits are held at once."""
    return max(LEAST_ROWS, LOGITS // vocabulary)


def divergence_target(logits: Tensor, top: int) -> tuple[Tensor, ...]:
    """Target of `divergence` from a teacher's logits (N, vocabulary): its `top` largest probabilities, or all logits
    if `top` is 0."""
    if not top:
        return (logits,)
    p = F.softmax(logits, -1, dtype=_wide(logits))
    largest, places = p.topk(min(top, p.shape[-1]), sorted=False)
    return largest, places, p.scatter_(-1, places, 0.0).sum(-1)


def divergence(logits: Tensor, target: tuple[Tensor, ...]) -> Tensor:
    """KL divergence of a student's logits (N, vocabulary) from a `divergence_target`, a scalar."""
    kind = Divergence if len(target) == 1 else TopDivergence
    loss: Tensor = kind.apply(logits, *target)
    return loss


def _pieces(logits: Tensor) -> Iterator[slice]:
    """Slices of rows of logits (N, vocabulary), PIECE values each."""
    rows = max(1, PIECE // logits.shape[1])
    return (slice(first, first + rows) for first in range(0, len(logits), rows))


def _wide(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def variance(samples: Iterable[Sequence[Tensor]]) -> Tensor:
    """Variance of each layer's outputs over all tokens, mean over the width: samples × layers of (T, D) → (layers).

    Accumulated per window: needs no more memory than training, and does not depend on the number of processes.
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
    """Cross-entropy of logits (N, vocabulary) and labels (N,), mean over tokens.

    Args:
        smoothing: label smoothing (Szegedy et al. 2016, arXiv 1512.00567, section 7).
    """
    loss: Tensor = CrossEntropy.apply(logits, labels, smoothing)
    return loss
