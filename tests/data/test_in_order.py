"""Batches of consecutive steps, made here and by other processes."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from t2r_export.data.batch import Batch, window_batch
from t2r_export.data.in_order import in_order

LAST = 7


def batch(step: int) -> Batch:
    """One that holds its step, and whether Ctrl-C is left to another process."""
    if step > LAST:
        raise ValueError(f"no step {step}")
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return window_batch(torch.tensor([[step, os.getpid(), ignored, 0]]))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_order(workers: int) -> None:
    rows = [made.ids[0].tolist() for made in in_order(batch, range(2, LAST), workers)]
    assert [row[0] for row in rows] == [*range(2, LAST)]
    makers = {row[1] for row in rows}
    assert len(makers) == max(1, workers)
    assert (os.getpid() in makers) is not bool(workers)
    assert {row[2] for row in rows} == {int(bool(workers))}


@pytest.mark.parametrize("workers, error", [(0, ValueError), (2, ValueError)])
def test_an_error_comes_with_its_batch(workers: int, error: type[Exception]) -> None:
    made = in_order(batch, range(LAST, LAST + 2), workers)
    assert int(next(made).ids[0, 0]) == LAST
    with pytest.raises(error, match=f"no step {LAST + 1}"):
        next(made)


def test_what_is_left_is_not_waited_for() -> None:
    assert int(next(in_order(batch, range(LAST), 2)).ids[0, 0]) == 0
