"""Batches of a thread: the same, in any order, and with the errors of their making."""

from __future__ import annotations

import threading

import pytest
import torch

from t2r_export.data.ahead import Ahead
from t2r_export.data.batch import Batch, window_batch
from t2r_runtime.errors import UserError

WAIT = 30  # seconds, of a thread that does not come


class Counted:
    """Batches that hold their step; there is none from step 5 on."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.second = threading.Event()
        self.test = [window_batch(torch.full((1, 3), 4))]

    def __call__(self, step: int) -> Batch:
        self.made.append(step)
        if len(self.made) == 2:
            self.second.set()
        if step >= 5:
            raise UserError("a step before 5", f"{step}", "stop")
        return window_batch(torch.full((1, 3), step))

    def validation(self, shares: int) -> list[Batch]:
        return [self(shares)]


def number(batch: Batch) -> int:
    return int(batch.ids[0, 0])


def test_batches_are_those_of_their_steps_in_any_order() -> None:
    ahead = Ahead(Counted())
    assert [number(ahead(step)) for step in (0, 1, 2, 2, 0, 4, 3)] == [0, 1, 2, 2, 0, 4, 3]
    assert number(ahead.test[0]) == 4
    assert number(ahead.validation(3)[0]) == 3


def test_the_next_batch_is_made_while_this_one_is_used() -> None:
    batches = Counted()
    ahead = Ahead(batches)
    ahead(0)
    assert batches.second.wait(WAIT)  # nobody has asked for it
    assert batches.made == [0, 1]
    assert number(ahead(1)) == 1
    assert batches.made.count(1) == 1


def test_an_error_is_raised_where_its_batch_is_asked_for() -> None:
    ahead = Ahead(Counted())
    assert number(ahead(4)) == 4
    with pytest.raises(UserError, match="a step before 5; received 5"):
        ahead(5)
