"""Batches of consecutive steps, made by this process or in advance by others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

from torch.utils.data import DataLoader, Dataset

from t2r_export.data.batch import Batch


class Steps(Dataset[Batch]):
    """The batches of a function of the step, as a dataset."""

    def __init__(self, batch: Callable[[int], Batch]) -> None:
        self.batch = batch

    def __getitem__(self, step: int) -> Batch:
        return self.batch(step)


def in_order(batch: Callable[[int], Batch], steps: range, workers: int) -> Iterator[Batch]:
    """Yield `batch(step)` for each of the steps.

    Augmenting and tokenizing pairs of 32,768 tokens took longer than a GPU takes to learn from them.

    Args:
        workers: number of processes that make batches in advance; 0: each is made when it is asked for.

    Raises:
        UserError: what `batch` raised here; what it raised in another process is a RuntimeError with its traceback.
    """
    if not workers:
        return map(batch, steps)
    loader = DataLoader(Steps(batch), None, sampler=steps, num_workers=workers, collate_fn=same, worker_init_fn=begin)
    return iter(loader)


def same(batch: Batch) -> Batch:
    return batch


def begin(worker: int) -> None:
    """Leave Ctrl-C to the training process, which ends the step, and threads to it: a fork may not have any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
