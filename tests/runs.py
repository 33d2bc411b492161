"""Finetuning runs that are stopped and resumed, their logs, and their changes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import texts
from t2r_export.batches.pair_batches import PairBatches
from t2r_export.batches.windows import WindowBatches
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune

PLAN = parse_plan("transfer,distill,task", "7,6,5", "0.03,0.01,0.003")


def usual(folder: Path) -> FinetuneConfig:
    """A run of three stages with all files in `folder`."""
    return texts.run(folder, PLAN, validate_every=5)


def ended(config: FinetuneConfig) -> bytes:
    """Output of the same run without an interruption; written to whole.pt beside `config.output`."""
    done = dataclasses.replace(config, output=config.output.with_name("whole.pt"))
    finetune(done)
    return done.output.read_bytes()


def resumed(config: FinetuneConfig) -> bytes:
    """Resume the run and return its output."""
    finetune(dataclasses.replace(config, resume=True))
    return config.output.read_bytes()


def run_until(config: FinetuneConfig, step: int, number: int) -> None:
    """Run until a signal arrives in the middle of a step."""
    batches: Any = PairBatches if config.pairs else WindowBatches
    batch_of = batches.__call__

    def batch(self: Any, asked: int) -> Any:
        if asked == step:
            os.kill(os.getpid(), number)
        return batch_of(self, asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "__call__", batch)
        finetune(config)


def stop_at(config: FinetuneConfig, step: int) -> None:
    """Run until Ctrl-C."""
    with pytest.raises(KeyboardInterrupt):
        run_until(config, step, signal.SIGINT)


def kill_at(config: FinetuneConfig, step: int) -> None:
    """Run in a fork, until it is killed."""
    if (child := os.fork()) == 0:
        try:
            run_until(config, step, signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def records(config: FinetuneConfig) -> list[dict[str, Any]]:
    """The lines of a run's log."""
    return [json.loads(line) for line in config.log_path.read_text().splitlines()]


def entry(config: FinetuneConfig) -> dict[str, Any]:
    """The run's entry in the result's provenance."""
    found: dict[str, Any] = checkpoint.load(config.output).provenance["finetune"][-1]
    return found


def changed(before: Path, after: Path) -> set[str]:
    """Names of the weights that differ."""
    old, new = (checkpoint.load(path).model.state_dict() for path in (before, after))
    return {name for name, weight in old.items() if not torch.equal(weight, new[name])}
