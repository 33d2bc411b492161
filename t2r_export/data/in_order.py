"""Batches of consecutive steps, made by this process or in advance by others."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator

import torch
from torch.utils.data import DataLoader, Dataset

from t2r_export.data.batch import Batch
from t2r_runtime.errors import UserError

CHUNK = 16  # steps whose batches one process makes; a chunk begins at a multiple of it


class Chunks(Dataset[list[Batch] | Exception]):
    """Batches of steps, as a dataset of chunks; errors are values, which `in_order` raises."""

    def __init__(self, batch: Callable[[int], Batch], steps: range) -> None:
        self.batch = batch
        self.chunks = [list(chunk) for _, chunk in itertools.groupby(steps, lambda step: step // CHUNK)]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> list[Batch] | Exception:
        try:
            return [self.batch(step) for step in self.chunks[number]]
        except UserError as error:  # DataLoader would raise another type
            return error
        except Exception:  # may not be picklable
            return RuntimeError(f"in a process that makes batches:\n{traceback.format_exc()}")


def in_order(batch: Callable[[int], Batch], steps: range, workers: int) -> Generator[Batch, None, None]:
    """Yield `batch(step)` for each of the steps; closing it ends the other processes.

    Augmenting and tokenizing pairs can take longer than a GPU takes to learn from them.

    Args:
        workers: number of processes that make batches in advance; 0, or on Windows: each is made when it is asked for.

    Raises:
        UserError: what `batch` raised, in whatever process.
        RuntimeError: another error in another process, with its traceback.
    """
    if not workers or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(batch, steps)
        return
    # Forked, since a tokenized corpus would take long to copy. Python 3.12 warns once that this process has threads
    # (a DeprecationWarning, not shown by default): a worker needs no lock of theirs, as it computes on one thread.
    made = DataLoader(
        Chunks(batch, steps),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=1,  # a tensor in advance is an open file; a worker waits only while there is enough
        worker_init_fn=begin,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # its seeds are not used, and would be drawn from torch's
    )
    for chunk in made:
        if isinstance(chunk, Exception):
            raise chunk
        yield from chunk


def begin(worker: int) -> None:
    """Leave Ctrl-C to the training process, which ends the step, and threads to it: a fork may not have any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
