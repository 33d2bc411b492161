"""Greedy translation by the eager model; equals beam search of width 1 over its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from t2r_export.data.ragged import Ragged
from t2r_export.model.transformer import Transformer

LONGEST = 256  # tokens of a translation
BATCH = 64  # sources side by side


@torch.no_grad()
def translate(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    longest: int = LONGEST,
    on_progress: Callable[[int], object] = lambda done: None,
) -> list[list[int]]:
    """Translate sources greedily.

    Args:
        sources: token ids with special tokens, at least one per source.
        longest: maximum tokens per translation, end token included; lower if the model has fewer positions.
        on_progress: called with the number of translated sources.

    Returns:
        Token ids per source, without end token.
    """
    limit = model.reach
    if limit is not None:
        longest = min(longest, limit + 1 - len(model.config.start_tokens))
    found: list[list[int]] = [[] for _ in sources]
    ragged = Ragged.of(sources)
    order, done = ragged.lengths.argsort(stable=True), 0
    for chosen in order.split(BATCH):
        for place, tokens in zip(chosen.tolist(), _batch(model, *ragged.padded(chosen), longest), strict=True):
            found[place] = tokens
        done += len(chosen)
        on_progress(done)
    return found


def _batch(model: Transformer, source: Tensor, lengths: Tensor, longest: int) -> list[list[int]]:
    config, device = model.config, model.embedding.weight.device
    states = model.start(source.to(device), lengths.to(device))
    begin = torch.tensor(config.start_tokens, device=device).expand(len(source), -1)
    logits, states = model.prefill(begin, states)
    logits, ends = logits[:, -1], torch.tensor(config.eos_tokens, device=device)
    chosen: list[Tensor] = []
    over = torch.zeros(len(source), dtype=torch.bool, device=device)
    while longest > 1:
        logits[:, list(config.banned_tokens)] = -torch.inf
        chosen.append(logits.argmax(-1))
        over |= torch.isin(chosen[-1], ends)
        if bool(over.all()) or len(chosen) == longest - 1:
            break
        logits, states = model.step(chosen[-1], states)
    rows, special = torch.stack(chosen, 1).tolist() if chosen else [[]] * len(source), set(config.eos_tokens)
    return [row[: next((n for n, token in enumerate(row) if token in special), len(row))] for row in rows]
