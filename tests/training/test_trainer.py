from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from t2r_export.training.optimizers import make_optimizer
from t2r_export.training.trainer import Interrupt, learning_rate


def test_learning_rate_schedule() -> None:
    rates = [learning_rate(step, 100, 2.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * i for i in range(1, 11)])
    assert max(rates) == rates[9] == 2.0
    assert all(a > b for a, b in zip(rates[9:], rates[10:], strict=False))
    assert 0 < rates[-1] < 0.01
    assert learning_rate(54, 100, 2.0, 0.1) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("steps, warmup", [(1, 0.0), (1, 1.0), (2, 0.5), (3, 1.0)])
def test_learning_rate_of_short_stages(steps: int, warmup: float) -> None:
    rates = [learning_rate(step, steps, 2.0, warmup) for step in range(steps)]
    assert all(0 < rate <= 2.0 for rate in rates)


def test_weight_decay_only_for_matrices() -> None:
    matrix, vector = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))
    matrix.grad, vector.grad = torch.zeros(2, 3), torch.zeros(3)
    make_optimizer({"m": matrix, "v": vector}, 0.1, weight_decay=0.5).step()
    torch.testing.assert_close(matrix.detach(), torch.full((2, 3), 0.95))
    assert torch.equal(vector.detach(), torch.ones(3))
    assert len(make_optimizer({"m": matrix}, 0.1, 0.0).param_groups) == 1


def test_first_interrupt_requests_second_stops() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt.asked
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_outside_main_thread() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.append((interrupt.asked, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
