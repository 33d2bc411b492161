"""Batches of a text: windows in a shuffled order, each from the position and the state that its config says."""

from __future__ import annotations

from torch import Tensor

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.data.batch import Batch, window_batch, window_batches
from t2r_export.data.corpus import Corpus, Windows, held_out_windows, spread, windows_of
from t2r_export.data.starts import draw_starts

VALIDATION_WINDOWS = 32  # of the valid part at most, in each validation during training; fewer where they are longer


class WindowBatches:
    """A corpus of tokens as a run reads it: `t2r_export.data.batch.Batches`."""

    def __init__(self, corpus: Corpus, config: FinetuneConfig) -> None:
        """`config` is for the model that is trained."""
        self.config = config
        self._windows = Windows(corpus.train, config.window, config.batch, config.seed)
        self._double = Windows(corpus.train, config.reach, config.batch, config.seed) if config.carried_states else None
        # as long as what is trained on, so that what is learned for states of texts counts
        most = min(VALIDATION_WINDOWS * config.window, config.validation_tokens)
        self._valid = spread(held_out_windows(corpus.valid, config.reach), windows_of(most, config.reach))
        test = held_out_windows(corpus.test, config.window)
        self.test = window_batches(spread(test, windows_of(config.report_tokens, config.window)))

    def __call__(self, step: int, carried: bool = False) -> Batch:
        config = self.config
        windows = self._double if carried and self._double is not None else self._windows
        starts: Tensor | None = None
        if config.start_positions:
            starts = draw_starts(config.start_positions, config.batch, config.seed, step)
        return window_batch(windows(step), starts, config.window if carried else 0)

    def validation(self, processes: int) -> list[Batch]:
        return window_batches(self._valid, max(1, self.config.batch // processes))
