"""How well a model predicts a text: nats per token and perplexity, over windows that it has not been trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.model import Transformer
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy of the next token, and what it is the mean of."""

    nats: float  # a token
    tokens: int
    length: int  # tokens that a window predicts; the first of them with no more than one token of context

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats) if self.nats < 700 else math.inf


@torch.no_grad()
def evaluate(model: Transformer, windows: Tensor, batch: int = 16) -> Evaluation:
    """Nats per token of `model` over windows (N, T+1) int64, each read from the initial state.

    Float32 on the model's device, whatever precision it was trained in. A model whose numbers overflow gives NaN.
    """
    if not len(windows):
        raise UserError("at least one window to evaluate", "none", "hold out more text")
    device = model.embedding.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in windows.split(batch):
        part = part.to(device)
        logits = model(part[:, :-1])
        total += F.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten(), reduction="sum")
    length = windows.shape[1] - 1
    return Evaluation(total.item() / (len(windows) * length), len(windows) * length, length)


def spread(windows: Tensor, count: int) -> Tensor:
    """At most `count` of the windows (N, T+1), evenly spread: a sample that is the same every time."""
    if len(windows) <= count:
        return windows
    return windows[torch.linspace(0, len(windows) - 1, count).long()]
