"""Batches of text windows for a finetuning run.

Packed windows cross document borders: there is no padding, and each token is predicted once per epoch. Windows of one
document each predict the same tokens, except the first token of a document after another's end token. Shorter rows are
padded with the text that follows: a causal model does not see it, and it is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from t2r_export.batches.batch import Batch, window_batch, window_batches
from t2r_export.batches.starts import draw_starts
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.data.corpus import PIECE, Vocabulary, Windows, check_length, held_out_windows, windows_of
from t2r_export.data.shards import Corpus, IntArray
from t2r_runtime.errors import UserError

VALIDATION_WINDOWS = 32  # maximum per validation during training


class Documents:
    """Shuffled windows of one document each, a function of seed and step; each is used once per epoch.

    Args:
        tokens: (N,), in which `model`'s beginning-of-text token begins documents, or its first end-of-text token ends
            them.

    Raises:
        UserError: rows of tokens, a model without these tokens, or no document of two tokens.
    """

    def __init__(self, tokens: IntArray, length: int, batch: int, seed: int, model: Vocabulary) -> None:
        begins = model.bos_token is not None
        marks = [model.bos_token] if begins else list(model.eos_tokens[:1])
        if tokens.ndim == 2 or not marks:
            received = "rows of tokens" if tokens.ndim == 2 else "a model without such a token"
            expected = "documents between beginning- or end-of-text tokens, for windows within them"
            raise UserError(expected, received, "leave out --split pack=false")
        check_length(tokens, 1, "training text")
        pieces = range(0, len(tokens), PIECE)
        places = [np.flatnonzero(tokens[at : at + PIECE] == marks[0]) + (at if begins else at + 1) for at in pieces]
        first = np.unique(np.concatenate([[0], *places]))
        first = first[first < len(tokens)]
        # the bos token is predicted at the end of the previous document, as in packed windows
        counts = np.append(first[1:] if begins else first[1:] - 1, len(tokens) - 1) - first
        windows = -(-counts // length)
        offsets = (np.arange(windows.sum()) - np.repeat(windows.cumsum() - windows, windows)) * length
        self.tokens, self.first = tokens, np.repeat(first, windows) + offsets
        self.counts = np.minimum(length, np.repeat(counts, windows) - offsets)
        if not len(self.first):
            raise UserError("a document of at least two tokens", "none", "pass more text")
        self._numbers = Windows(np.arange(len(self.first))[:, None], 0, batch, seed)

    def __call__(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        chosen = self._numbers(step)[:, 0].numpy()
        counts = self.counts[chosen]
        columns = np.arange(counts.max() + 1)
        ids = self.tokens[np.minimum(self.first[chosen, None] + columns, len(self.tokens) - 1)]
        places = torch.from_numpy(np.flatnonzero(columns[:-1] < counts[:, None]))
        return replace(window_batch(torch.from_numpy(ids.astype(np.int64))), places=places)


class WindowBatches:
    """`t2r_export.batches.batch.Batches` of a corpus of tokens."""

    def __init__(self, corpus: Corpus, config: FinetuneConfig, model: Vocabulary) -> None:
        self.config = config
        how = config.window, config.batch, config.seed
        if config.pack:
            windows = Windows(corpus.train, *how)
            self._batch: Callable[[int], Batch] = lambda step: window_batch(windows(step))
        else:
            self._batch = Documents(corpus.train, *how, model)
        most = min(VALIDATION_WINDOWS * config.window, config.validation_tokens)
        self._valid = held_out_windows(corpus.valid, config.window, windows_of(most, config.window))
        count = windows_of(config.report_tokens, config.window)
        self.test = window_batches(held_out_windows(corpus.test, config.window, count))

    def __call__(self, step: int) -> Batch:
        config, starts = self.config, None
        if config.start_positions:
            starts = draw_starts(config.start_positions, config.batch, config.seed, step)
        return replace(self._batch(step), start=starts)

    def validation(self, shares: int) -> list[Batch]:
        return window_batches(self._valid, max(1, self.config.batch // shares))
