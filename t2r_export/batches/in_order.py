"""Batches of consecutive steps, made by this process or prefetched by worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Generator

import torch
from torch.utils.data import DataLoader, Dataset

from t2r_export.batches.batch import Batch
from t2r_runtime.errors import UserError

CHUNK = 16  # steps per task of a worker; chunks begin at its multiples


class Chunks(Dataset[list[Batch] | Exception]):
    """Dataset of chunks of batches; errors are returned as values, which `in_order` raises."""

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
    """Yield `batch(step)` for each of the steps; closing the generator ends the workers.

    Reading and padding a batch can take longer than a training step on a GPU.

    Args:
        workers: number of worker processes that prefetch; with 0, or on Windows, batches are made on demand.

    Raises:
        UserError: raised by `batch`, in any process.
        RuntimeError: any other error in a worker, with its traceback.
    """
    if not workers or "fork" not in multiprocessing.get_all_start_methods():
        yield from map(batch, steps)
        return
    # Fork, because copying a tokenized corpus is slow. Python 3.12 warns once that this process has threads (a
    # DeprecationWarning, hidden by default): a worker needs none of their locks, because it has one thread.
    made = DataLoader(
        Chunks(batch, steps),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=1,  # each prefetched tensor is an open file; a worker waits only if enough are ready
        worker_init_fn=begin,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # unused, but the default would advance torch's global generator
    )
    for chunk in made:
        if isinstance(chunk, Exception):
            raise chunk
        yield from chunk


def begin(worker: int) -> None:
    """Ignore Ctrl-C, which the training process handles, and disable tokenizer threads, unsafe after a fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
