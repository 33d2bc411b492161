"""Batches of consecutive steps, made here and by other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator

import pytest
import torch

from t2r_export.batches import in_order as module
from t2r_export.batches.batch import Batch, window_batch
from t2r_export.batches.in_order import CHUNK, in_order
from t2r_runtime.errors import UserError

STEPS = range(CHUNK - 3, 3 * CHUNK + 2)  # four chunks, the first and last in part
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),  # Python 3.12
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # with fewer cores
]


def batch(step: int) -> Batch:
    """A batch of its step, the process that made it, and whether that process ignores Ctrl-C."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return window_batch(torch.tensor([[step, os.getpid(), ignored, 0]]))


def rows(made: Iterator[Batch]) -> list[list[int]]:
    return [one.ids[0].tolist() for one in made]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("steps", [STEPS, range(CHUNK, 2 * CHUNK), range(5, 6), range(0)])
def test_batches_come_in_order(steps: range, workers: int) -> None:
    found = rows(in_order(batch, steps, workers))
    assert [row[0] for row in found] == [*steps]
    assert all((row[1] == os.getpid()) is (workers == 0) for row in found)
    here = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # such as when tests run in the background
    assert all(row[2] == (workers > 0 or here) for row in found)


def test_a_chunk_is_made_by_one_process() -> None:
    makers: dict[int, set[int]] = {}
    for step, maker, _ in rows(in_order(batch, STEPS, 2)):
        makers.setdefault(step // CHUNK, set()).add(maker)
    assert [len(those) for those in makers.values()] == [1, 1, 1, 1]
    assert len(set.union(*makers.values())) == 2


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("error", [UserError("a word", "none", "give one"), OSError(28, "full")])
def test_an_error_comes_after_the_chunks_before_it(error: Exception, workers: int) -> None:
    def broken(step: int) -> Batch:
        if step == 2 * CHUNK:
            raise error
        return batch(step)

    made, seen = in_order(broken, STEPS, workers), list[Batch]()
    same = not workers or isinstance(error, UserError)
    with pytest.raises(type(error) if same else RuntimeError) as caught:
        seen.extend(made)
    assert [row[0] for row in rows(iter(seen))] == [*range(STEPS[0], 2 * CHUNK)]
    if same:
        assert pickle.dumps(caught.value) == pickle.dumps(error)
    else:
        assert all(part in str(caught.value) for part in ("in a process that makes batches", "Traceback", "full"))
    assert multiprocessing.active_children() == []


def test_without_forks_batches_are_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert {row[1] for row in rows(in_order(batch, STEPS, 2))} == {os.getpid()}


def test_closing_ends_the_processes() -> None:
    made = in_order(batch, STEPS, 2)
    assert int(next(made).ids[0, 0]) == STEPS[0]
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    made.close()
    assert not any(worker.is_alive() for worker in workers)


def test_torchs_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    rows(in_order(batch, STEPS, 1))
    assert torch.equal(before, torch.get_rng_state())
