"""Batches of a text: windows in a shuffled order, each from the position that its config says."""

from __future__ import annotations

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.data.batch import Batch, window_batch, window_batches
from t2r_export.data.corpus import Windows, held_out_windows, windows_of
from t2r_export.data.shards import Corpus
from t2r_export.data.starts import draw_starts

VALIDATION_WINDOWS = 32  # of the valid part at most, in each validation during training; fewer where they are longer


class WindowBatches:
    """A corpus of tokens as a run reads it: `t2r_export.data.batch.Batches`."""

    def __init__(self, corpus: Corpus, config: FinetuneConfig) -> None:
        """`config` is for the model that is trained."""
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

    def validation(self, processes: int) -> list[Batch]:
        return window_batches(self._valid, max(1, self.config.batch // processes))
