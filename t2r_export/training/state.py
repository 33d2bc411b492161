"""The saved state of a training run: all that `--resume` needs to continue as if there had been no interruption.

The order of the data and the learning rate are functions of the step, redrawn feature maps follow from the previous
draw, and nothing else in training is random: so the weights, the optimizer's moments and two counters are the whole
state. The file is beside the output and is replaced as a whole: a kill at any moment leaves the previous one.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import replacing

FORMAT = "t2r-training"
VERSION = 1


@dataclass
class TrainingState:
    """Where a run stands: `step` steps of stage number `stage` are done."""

    identity: dict[str, Any]  # equal for the same run: options, data, models
    weights: dict[str, Tensor]
    stage: int = 0
    step: int = 0
    optimizer: dict[str, Any] | None = None  # of the stage under way; None before its first step
    tokens: int = 0
    measured: dict[str, float] = field(default_factory=dict)  # nats before training


def save_state(path: Path, state: TrainingState) -> None:
    """Write the state, whole or not at all. Raises UserError where that is not possible."""
    with replacing(path) as part:
        torch.save({"format": FORMAT, "version": VERSION, **vars(state)}, part)


def load_state(path: Path, identity: Mapping[str, Any]) -> TrainingState:
    """Read a state that belongs to the run `identity`; tensors come on the CPU.

    Raises:
        UserError: not such a file, or one of a run with other options, data or models; the message names them.
    """
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, KeyError, EOFError, OSError) as error:
        reason = printable(error, 100)
        raise UserError(f"a training state in {path}", reason, "delete it and start again without --resume") from error
    known = set(TrainingState.__dataclass_fields__) | {"format", "version"}
    if not isinstance(data, dict) or set(data) != known or (data["format"], data["version"]) != (FORMAT, VERSION):
        raise UserError(
            f"a training state of version {VERSION} in {path}", "something else", "delete it and start without --resume"
        )
    del data["format"], data["version"]
    state = TrainingState(**data)
    check_identity(state.identity, identity, path)
    return state


def check_identity(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise UserError, naming what differs, unless both describe the same run."""
    keys = sorted({*saved, *wanted})
    differing = [key for key in keys if saved.get(key) != wanted.get(key)]
    if differing:
        before, now = ("; ".join(f"{key} {printable(of.get(key), 60)}" for key in differing) for of in (saved, wanted))
        raise UserError(
            f"{before}, as in the run saved in {path}",
            now,
            "resume with the options and files of that run, or delete that file to start again",
        )
