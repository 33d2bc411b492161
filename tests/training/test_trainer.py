"""Non-finite losses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import texts
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FAR_SHARES, FinetuneConfig
from t2r_export.config.mixers import HybridConfig
from t2r_export.config.stages import parse_plan
from t2r_export.describe import describe
from t2r_export.errors import CheckFailed
from t2r_export.finetune import finetune
from t2r_export.training.trainer import Trainer


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
    """The check runs ten steps later but reports the first broken step; each step fails at the same place."""
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


def test_shares_of_attention_are_stored_beside_the_teachers(config: FinetuneConfig) -> None:
    texts.write_student(config.model, mixer=HybridConfig(3, 4))
    config = dataclasses.replace(config, plan=parse_plan("distill", "2", "0.01"))
    finetune(config)
    rows = checkpoint.load(config.output).provenance["finetune"][-1][FAR_SHARES]
    layers = len(checkpoint.load(config.output).config.layers)
    assert [row[0] for row in rows] == list(range(layers))
    assert len({share for row in rows for share in row[1:]}) == 2 * layers
    details = describe(config.output).details
    first = f"layer 0 {rows[0][1]:.2f}/{rows[0][2]:.2f}"
    assert details["attention in the sums / the teacher's beyond the window"].startswith(first)
