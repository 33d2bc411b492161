"""Keep the weights of a stage's best validation. The first validation is before the first step.

Only the main process validates; at the end of a stage its weights are broadcast to all processes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from t2r_export.checkpoints.archive import write_archive
from t2r_export.training.state import TrainingState

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Kept:
    """Result of a stage: validation scores (`Stage.score`)."""

    stage: str
    step: int  # step whose weights are kept; 0: before the stage
    steps: int
    best: float
    last: float  # after the last step

    def line(self) -> str | None:
        """Log message; None if the last step was the best."""
        if self.step == self.steps:
            return None
        whose = f"of step {self.step} of {self.steps}" if self.step else "from before it"
        return (
            f"{self.stage} keeps the weights {whose}: {self.best:.4f} in validation, and {self.last:.4f} after the "
            "last step"
        )


def remember(state: TrainingState, step: int, score: float, student: nn.Module, folder: Path) -> None:
    """Record a validation score; copy the weights if it is the best so far."""
    score = score if math.isfinite(score) else math.inf
    if state.best is None or score < state.best["score"]:
        state.best = {"step": step, "score": score, "weights": put_aside(student.state_dict(), folder)}
    state.best["last"] = score


def put_aside(weights: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Copy weights to an unlinked file, memory-mapped on the CPU: they take memory only while they are read.

    Args:
        folder: on the disk that holds the file.

    Raises:
        UserError: the file cannot be written.
    """
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as made:  # Windows keeps mapped files
        path = Path(made) / "weights"
        write_archive(path, dict(weights))
        found: dict[str, Tensor] = torch.load(path, "cpu", mmap=True, weights_only=True)
    return found


def keep_best(
    state: TrainingState, stage: str, steps: int, student: nn.Module, accelerator: Accelerator
) -> Kept | None:
    """Load the weights of the stage's best validation in all processes. Returns None outside the main process."""
    load_best(state, student, accelerator)
    kept = None
    if accelerator.is_main_process:
        assert state.best is not None
        kept = Kept(stage, state.best["step"], steps, state.best["score"], state.best["last"])
        state.kept.append(vars(kept).copy())
    state.best = None
    return kept


@torch.no_grad()
def load_best(state: TrainingState, student: nn.Module, accelerator: Accelerator) -> None:
    """Load the weights of the stage's best validation so far, in all processes."""
    from accelerate.utils import broadcast

    if accelerator.is_main_process:
        assert state.best is not None
        student.load_state_dict(state.best["weights"])
    for weight in student.state_dict().values():
        weight.copy_(broadcast(weight.to(accelerator.device)))  # a sharded run's weights are in main memory
