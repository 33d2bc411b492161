"""Sample training text from a model, for distillation without a corpus (LLM-QAT, Liu et al. 2023, arXiv 2305.17888,
section 3.1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

BATCH = 64  # texts sampled in parallel; the texts of a seed depend on it
MAX_TOKENS = 1 << 32


def check_sizes(count: int, length: int, limit: int | None, temperature: float) -> None:
    """Raise UserError for numbers out of range; `limit` is the last position of the model."""
    if not 1 <= count <= MAX_TOKENS:
        raise UserError(f"1 to {MAX_TOKENS} tokens to write", str(count), "correct the number")
    if not 1 <= length <= (limit or MAX_TOKENS):
        raise UserError(f"a length from 1 to {limit or MAX_TOKENS}", str(length), "correct the length")
    if not 0 < temperature < float("inf"):
        raise UserError("a temperature above 0", str(temperature), "correct the temperature")


def draw(logits: Tensor, temperature: float, generator: torch.Generator, place: int) -> tuple[Tensor, Tensor]:
    """Tokens (B,) drawn on the CPU, and their probabilities (B,), float64.

    Args:
        place: of the tokens in their texts, for the error.

    Raises:
        UserError: non-finite logits.
    """
    chances = torch.softmax(logits.cpu().double() / temperature, -1)
    if not bool(chances.isfinite().all()):
        received = f"NaN or infinity at token {place} of a text"
        raise UserError("a model with finite logits", received, "verify the model")
    token = torch.multinomial(chances, 1, generator=generator)
    return token[:, 0], chances.gather(1, token)[:, 0]


@torch.no_grad()
def sample(
    model: Transformer,
    count: int,
    length: int = 256,
    temperature: float = 1.0,
    seed: int = 0,
    on_progress: Callable[[int], object] = lambda done: None,
) -> npt.NDArray[np.int32]:
    """Sample token ids (N,), N = `count`: concatenated texts of `length` tokens, each from the initial state.

    A text begins with the beginning-of-text token, else the end-of-text token, else a random token. After an
    end-of-text token the next beginning-of-text token follows, as in training text.

    Args:
        on_progress: called with the number of tokens sampled so far.

    Raises:
        UserError: a number out of range, a length beyond the model's last position, or non-finite logits.
    """
    model.require_decoder("to sample texts from", "pass it sources to translate")
    check_sizes(count, length, model.reach, temperature)
    generator = torch.Generator().manual_seed(seed)
    texts = -(-count // length)
    rows = []
    for first in range(0, texts, BATCH):
        rows.append(_write(model, min(BATCH, texts - first), length, temperature, generator))
        on_progress(min(count, sum(part.numel() for part in rows)))
    return torch.cat(rows).flatten()[:count].numpy().astype(np.int32)


def _write(model: Transformer, batch: int, length: int, temperature: float, generator: torch.Generator) -> Tensor:
    """Texts (batch, length), int64 on the CPU, drawn on the CPU for equal results on all devices."""
    config, device = model.config, model.embedding.weight.device
    begin = config.bos_token if config.bos_token is not None else next(iter(config.eos_tokens), None)
    if begin is None:
        token = torch.randint(config.vocab_size, (batch,), generator=generator)
    else:
        token = torch.full((batch,), begin)
    # a token that both ends and begins texts needs no separate beginning-of-text token
    ends = torch.tensor([t for t in config.eos_tokens if t != config.bos_token], dtype=torch.int64)
    text, states = [token], model.init_state(batch)
    while len(text) < length:
        logits, states = model.step(token.to(device), states)
        token, _ = draw(logits, temperature, generator, len(text))
        if config.bos_token is not None:
            token = torch.where(torch.isin(text[-1], ends), config.bos_token, token)
        text.append(token)
    return torch.stack(text, 1)
