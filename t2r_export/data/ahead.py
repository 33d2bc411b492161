"""Batches that a thread makes while the step before is computed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from t2r_export.data.batch import Batch, Batches


class Ahead:
    """`Batches` of others, the same ones. The batch after the last one asked for is being made.

    One thread makes them all, since batches may keep the order of an epoch. Augmenting and tokenizing pairs of 32,768
    tokens takes longer than a GPU takes to learn from them.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches, self.test = batches, batches.test
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: dict[int, Future[Batch]] = {}

    def __call__(self, step: int) -> Batch:
        """The global batch of a step. Raises what making it raised."""
        made = self._next.pop(step, None) or self._thread.submit(self._batches, step)
        self._next = {step + 1: self._thread.submit(self._batches, step + 1)}
        return made.result()

    def validation(self, shares: int) -> list[Batch]:
        return self._batches.validation(shares)
