"""Batches of consecutive steps, made by this process or in advance by others."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator

from torch.utils.data import DataLoader, Dataset

from t2r_export.data.batch import Batch

CHUNK = 16  # steps whose batches one process makes; a chunk begins at a multiple of it


class Chunks(Dataset[list[Batch]]):
    """Batches of steps, as a dataset of chunks."""

    def __init__(self, batch: Callable[[int], Batch], steps: range) -> None:
        self.batch = batch
        self.chunks = [list(chunk) for _, chunk in itertools.groupby(steps, lambda step: step // CHUNK)]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> list[Batch]:
        return [self.batch(step) for step in self.chunks[number]]


def in_order(batch: Callable[[int], Batch], steps: range, workers: int) -> Iterator[Batch]:
    """Yield `batch(step)` for each of the steps.

    Augmenting and tokenizing pairs can take longer than a GPU takes to learn from them.

    Args:
        workers: number of processes that make batches in advance; 0: each is made when it is asked for.

    Raises:
        UserError: what `batch` raised here; what it raised in another process is a RuntimeError with its traceback.
    """
    if not workers:
        return map(batch, steps)
    made = DataLoader(Chunks(batch, steps), None, num_workers=workers, collate_fn=same, worker_init_fn=begin)
    return itertools.chain.from_iterable(made)


def same(batches: list[Batch]) -> list[Batch]:
    return batches


def begin(worker: int) -> None:
    """Leave Ctrl-C to the training process, which ends the step, and threads to it: a fork may not have any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
