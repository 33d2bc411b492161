"""Nats per token and perplexity of a model on held-out text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.batches.batch import Batch, initial_states
from t2r_export.config.finetune import LEAST_LENGTH
from t2r_export.data.corpus import check_length, held_out_windows, windows_of
from t2r_export.data.shards import IntArray
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

BATCH_TOKENS = 4096  # per forward pass; bounds memory for long windows
LOGITS = 1 << 24  # held at a time


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy of the next token."""

    nats: float  # per token
    tokens: int
    length: int  # predicted tokens of the longest window
    standard_error: float = math.nan  # of nats over windows or pairs; NaN for a single one

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats) if self.nats < 700 else math.inf


@torch.no_grad()
def evaluate(model: Transformer, batches: Sequence[Batch]) -> Evaluation:
    """Nats per predicted token of `model` over batches; sequences start from the initial state.

    Computed in float32 on the model's device. Overflow gives NaN.

    Raises:
        UserError: no predicted tokens.
    """
    tokens = sum(batch.count for batch in batches)
    if not tokens:
        raise UserError("at least one window to evaluate", "none", "hold out more text")
    device = model.embedding.weight.device
    sums, counts = [], []  # of each sequence
    for batch in batches:
        batch = batch.to(device)
        rows = batch.predicted(model.rows(batch.ids, initial_states(model, batch)))
        size = max(1, LOGITS // model.config.vocab_size)
        parts = zip(rows.split(size), batch.labels.split(size), strict=True)
        found = [F.cross_entropy(model.logits_of(x).float(), labels, reduction="none") for x, labels in parts]
        losses = torch.cat(found).double()
        of = batch.sequences
        sums.append(torch.zeros(len(batch), dtype=torch.float64, device=device).index_add(0, of, losses).cpu())
        counts.append(of.bincount(minlength=len(batch)).cpu())
    nats, error = mean_and_error(torch.cat(sums), torch.cat(counts))
    return Evaluation(nats, tokens, max(batch.ids.shape[1] for batch in batches), error)


def mean_and_error(sums: Tensor, counts: Tensor) -> tuple[float, float]:
    """Nats per token over sequences and its standard error, the sequences being a random sample.

    Args:
        sums: (N,) float64, nats per sequence.
        counts: (N,), tokens per sequence.
    """
    total, number = counts.sum(), len(sums)
    mean = sums.sum() / total
    if number < 2:
        return mean.item(), math.nan
    spread = (sums - mean * counts).square().sum() * number / (number - 1)  # ratio estimator (Cochran 1977, 6.4)
    return mean.item(), (spread.sqrt() / total).item()


@dataclass(frozen=True)
class AtLength:
    """Evaluation in windows of one length."""

    length: int
    nats: float  # per token
    end_nats: float  # per token, in the last quarter of the windows
    tokens: int
    standard_error: float  # of nats over windows; NaN for a single one
    end_standard_error: float
    above: float | None = None  # nats per token above the teacher's on the same windows
    above_standard_error: float | None = None  # of the paired differences; smaller than those of the two models

    @property
    def perplexity(self) -> float:
        return Evaluation(self.nats, self.tokens, self.length).perplexity


def evaluate_lengths(
    model: Transformer,
    tokens: Tensor | IntArray,
    lengths: Sequence[int],
    count: int = 0,
    most: int = 0,
    teacher: Transformer | None = None,
) -> list[AtLength]:
    """Evaluate in windows of several lengths over the same tokens; windows start from the initial state.

    Args:
        tokens: (N,), or rows (N, length+1) for a single length.
        lengths: predicted tokens per window, at least LEAST_LENGTH.
        count: maximum windows per length, evenly spread; 0: all.
        most: maximum predicted tokens per length, at least one window; 0: all.
        teacher: a model with the same tokens, to compare with window by window.

    Raises:
        UserError: a length beyond the models' positions or the text, or another vocabulary of the teacher.
    """
    models = [model] if teacher is None else [model, teacher]
    for each in models:
        each.require_decoder("to measure on a text", "pass it a .tsv of pairs")
    sizes = [each.config.vocab_size for each in models]
    if len(set(sizes)) > 1:
        raise UserError(f"a teacher with {sizes[0]} tokens", str(sizes[1]), "name the model that it was converted from")
    limit = min((each.reach for each in models if each.reach is not None), default=None)
    for length in lengths:
        if not LEAST_LENGTH <= length <= (limit or length):
            received, end = str(length), "" if limit is None else f" to {limit}, the model's last position"
            raise UserError(f"lengths from {LEAST_LENGTH}{end}", received, "correct the lengths")
    for length in lengths:
        check_length(tokens, length, "text to measure on")
    windows = ((length, count, windows_of(most, length)) for length in lengths)
    return [_at_length(model, held_out_windows(tokens, *which), teacher) for which in windows]


def _at_length(model: Transformer, windows: Tensor, teacher: Transformer | None) -> AtLength:
    length = windows.shape[1] - 1

    def losses_of(one: Transformer) -> Tensor:
        return torch.cat([token_losses(one, part) for part in windows.split(max(1, BATCH_TOKENS // length))])

    losses = losses_of(model)
    (nats, error), (end, end_error) = (over_windows(part) for part in (losses, losses[:, -(length // 4) :]))
    above = (None, None) if teacher is None else over_windows(losses - losses_of(teacher))
    return AtLength(length, nats, end, losses.numel(), error, end_error, *above)


def over_windows(losses: Tensor) -> tuple[float, float]:
    """Mean of (N, T) float64 and its standard error, the rows being a random sample."""
    return mean_and_error(losses.sum(1), torch.full((len(losses),), losses.shape[1]))


@torch.no_grad()
def token_losses(model: Transformer, windows: Tensor) -> Tensor:
    """Cross-entropy of each predicted token of windows (N, T+1): (N, T) float64 on the CPU."""
    windows = windows.to(model.embedding.weight.device)
    logits = model(windows[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="none")
    return losses.view(len(windows), -1).cpu().double()
