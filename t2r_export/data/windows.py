"""Batches of text windows for a finetuning run."""

from __future__ import annotations

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.data.batch import Batch, window_batch, window_batches
from t2r_export.data.corpus import Windows, held_out_windows, windows_of
from t2r_export.data.shards import Corpus
from t2r_export.data.starts import draw_starts

VALIDATION_WINDOWS = 32  # maximum per validation during training


class WindowBatches:
    """`t2r_export.data.batch.Batches` of a corpus of tokens."""

    def __init__(self, corpus: Corpus, config: FinetuneConfig) -> None:
        self.config = config
        self._windows = Windows(corpus.train, config.window, config.batch, config.seed)
        most = min(VALIDATION_WINDOWS * config.window, config.validation_tokens)
        self._valid = held_out_windows(corpus.valid, config.window, windows_of(most, config.window))
        count = windows_of(config.report_tokens, config.window)
        self.test = window_batches(held_out_windows(corpus.test, config.window, count))

    def __call__(self, step: int) -> Batch:
        config, starts = self.config, None
        if config.start_positions:
            starts = draw_starts(config.start_positions, config.batch, config.seed, step)
        return window_batch(self._windows(step), starts)

    def validation(self, shares: int) -> list[Batch]:
        return window_batches(self._valid, max(1, self.config.batch // shares))
