"""The schedule of learning rates, interrupts, and losses that are not finite."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from typing import Any

import pytest
import torch

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.errors import CheckFailed
from t2r_export.finetune import finetune
from t2r_export.training.optimizers import make_optimizer
from t2r_export.training.trainer import Interrupt, Trainer, learning_rate


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


def test_non_finite_loss_ends_run(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    step_of = Trainer._step
    steps: list[int] = []

    def step(self: Trainer, *arguments: Any) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 9:
            with torch.no_grad():
                self.student.norm.weight[0] = torch.nan
        return step_of(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step)
    with pytest.raises(
        CheckFailed,
        match="the loss is nan and its gradient nan at step 2 of distill, first in the weight student.norm.weight; "
        ".*lower learning",
    ):
        finetune(config)
    assert not config.output.exists()
    kept = torch.load(config.state_path, weights_only=True)
    assert (kept["stage"], kept["step"]) == (1, 0)
    assert all(bool(weight.isfinite().all()) for weight in kept["weights"].values())


def test_weights_before_non_finite_step_are_kept(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look comes ten steps later, and still says where it began: each step is broken in the same place."""
    kept: list[Any] = []

    def step(self: Trainer, *arguments: Any) -> torch.Tensor:
        kept.append({name: w.detach().clone() for name, w in self.student.state_dict().items()})
        return step_of(self, *arguments)

    def overflow(module: torch.nn.Module, inputs: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        return output[0] * (torch.inf if len(kept) >= 3 and torch.is_grad_enabled() else 1.0), output[1]

    def start(self: Trainer, *arguments: Any) -> None:
        student.append(self.student)
        self.student.blocks[1].mixers[0].inner.register_forward_hook(overflow)
        stage_of(self, *arguments)

    student: list[Any] = []
    step_of, stage_of = Trainer._step, Trainer._stage
    monkeypatch.setattr(Trainer, "_step", step)
    monkeypatch.setattr(Trainer, "_stage", start)
    config = dataclasses.replace(config, plan=parse_plan("transfer", "10"), checkpoint_every=10, validate_every=10)
    with pytest.raises(
        CheckFailed, match="at step 3 of transfer, first in the output of student.blocks.1.parts.0.inner;"
    ):
        finetune(config)
    assert len(kept) == 10
    for name, weight in student[0].state_dict().items():
        assert torch.equal(weight, kept[2][name])
    maps = "blocks.1.parts.0.inner.maps.k.weight"
    assert not torch.equal(kept[2][maps], kept[0][maps])
