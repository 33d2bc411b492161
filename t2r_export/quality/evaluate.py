"""How well a model predicts a text: nats per token and perplexity, over windows that it has not been trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.data.batch import Batch, initial_states
from t2r_export.data.corpus import check_length, held_out_windows, windows_of
from t2r_export.data.shards import IntArray
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

BATCH_TOKENS = 4096  # per forward pass, so that memory does not grow with the length


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy of the next token, and over what it is the mean."""

    nats: float  # per token
    tokens: int
    length: int  # tokens predicted per window, of the longest; the first has one token of context
    standard_error: float = math.nan  # of nats as a mean over windows, or pairs; NaN of one alone

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats) if self.nats < 700 else math.inf


@torch.no_grad()
def evaluate(model: Transformer, batches: Sequence[Batch]) -> Evaluation:
    """Nats per predicted token of `model` over batches, each sequence read from the initial state.

    In float32 on the model's device, also where training was in bf16. Overflow gives NaN.
    """
    tokens = sum(batch.count for batch in batches)
    if not tokens:
        raise UserError("at least one window to evaluate", "none", "hold out more text")
    device = model.embedding.weight.device
    sums, counts = [], []  # of each sequence
    for batch in batches:
        batch = batch.to(device)
        rows = model.rows(batch.ids, initial_states(model, batch))
        logits = model.logits_of(batch.predicted(rows))
        losses = F.cross_entropy(logits.float(), batch.labels, reduction="none").double()
        of = batch.sequences
        sums.append(torch.zeros(len(batch), dtype=torch.float64, device=device).index_add(0, of, losses).cpu())
        counts.append(of.bincount(minlength=len(batch)).cpu())
    nats, error = mean_and_error(torch.cat(sums), torch.cat(counts))
    return Evaluation(nats, tokens, max(batch.ids.shape[1] for batch in batches), error)


def mean_and_error(sums: Tensor, counts: Tensor) -> tuple[float, float]:
    """Nats per token over sequences, and the standard error of that, where the sequences are drawn from more text.

    Args:
        sums: (N,) float64, nats of each sequence. counts: (N,), its tokens.
    """
    total, number = counts.sum(), len(sums)
    mean = sums.sum() / total
    if number < 2:
        return mean.item(), math.nan
    spread = (sums - mean * counts).square().sum() * number / (number - 1)  # of a ratio of two sums (Cochran 1977, 6.4)
    return mean.item(), (spread.sqrt() / total).item()


@dataclass(frozen=True)
class AtLength:
    """How well a model predicts in windows of one length, and in their last quarter."""

    length: int
    nats: float  # per token, all of the window
    end_nats: float  # per token, the last quarter of the window: the quality far from its start
    tokens: int
    standard_error: float  # of nats, as a mean over windows; NaN of one alone
    end_standard_error: float

    @property
    def perplexity(self) -> float:
        return Evaluation(self.nats, self.tokens, self.length).perplexity


def evaluate_lengths(
    model: Transformer, tokens: Tensor | IntArray, lengths: Sequence[int], count: int = 0, most: int = 0
) -> list[AtLength]:
    """`evaluate` in windows of several lengths over the same tokens: each window from the initial state.

    Args:
        tokens: (N,), or (N, length+1), which only one length fits.
        lengths: tokens that a window predicts, at least 4.
        count: at most this many windows of each length, evenly spread; 0 is all.
        most: tokens that windows of each length predict at most, but one window; 0 is all.

    Raises:
        UserError: a length that the model's positions or the text do not reach.
    """
    model.require_decoder("to measure on a text", "give it a .tsv of pairs")
    limit = model.reach
    for length in lengths:
        if not 4 <= length <= (limit or length):
            received, end = str(length), "" if limit is None else f" to {limit}, the model's last position"
            raise UserError(f"lengths from 4{end}", received, "correct the lengths")
    for length in lengths:
        check_length(tokens, length, "text to measure on")
    windows = ((length, count, windows_of(most, length)) for length in lengths)
    return [_at_length(model, held_out_windows(tokens, *which)) for which in windows]


@torch.no_grad()
def _at_length(model: Transformer, windows: Tensor) -> AtLength:
    length = windows.shape[1] - 1
    losses = torch.cat([token_losses(model, part) for part in windows.split(max(1, BATCH_TOKENS // length))])
    tail = losses[:, -(length // 4) :]
    (nats, error), (end, end_error) = (
        mean_and_error(part.sum(1), torch.full((len(part),), part.shape[1])) for part in (losses, tail)
    )
    return AtLength(length, nats, end, losses.numel(), error, end_error)


def token_losses(model: Transformer, windows: Tensor) -> Tensor:
    """Cross-entropy of each token that windows (N, T+1) predict, (N, T) float64 on the CPU."""
    windows = windows.to(model.embedding.weight.device)
    logits = model(windows[:, :-1])
    losses = F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="none")
    return losses.view(len(windows), -1).cpu().double()
