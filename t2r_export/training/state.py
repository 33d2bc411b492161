"""The saved state of a training run: all that `--resume` needs to continue as if there had been no interruption.

The order of the data, the positions where it starts and the learning rate are functions of the step, redrawn feature
maps follow from the previous draw, and nothing else in training is random: so the weights, those of the stage's best
validation, the optimizer's moments and two counters are the whole state. The file is beside the output and is replaced
as a whole: a kill at any moment leaves the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints.archive import check_archive, write_archive
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.files import existing_file

FORMAT = "t2r-training"
VERSION = 2
AGAIN = "delete it and start again without --resume"


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
    best: dict[str, Any] | None = None  # of the stage under way: step, score, weights, and the last score
    kept: list[dict[str, Any]] = field(default_factory=list)  # of the stages that are done, fields of `best.Kept`


def save_state(path: Path, state: TrainingState) -> None:
    """Write the state, whole or not at all. Raises UserError where that is not possible."""
    write_archive(path, {"format": FORMAT, "version": VERSION, **vars(state)})


def load_state(path: Path, identity: Mapping[str, Any]) -> TrainingState:
    """Read a state that belongs to the run `identity`; tensors come on the CPU.

    Raises:
        UserError: not such a file, or one of a run with other options, data or models; the message names them.
    """
    try:
        check_archive(existing_file(path, "a training state"), "a training state", AGAIN)
        data = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except Exception as error:  # damaged bytes make torch call its own functions with anything
        raise UserError(f"a training state in {path}", printable(error, 100), AGAIN) from error
    known = set(TrainingState.__dataclass_fields__) | {"format", "version"}
    if not isinstance(data, dict) or set(data) != known or (data["format"], data["version"]) != (FORMAT, VERSION):
        raise damaged(path, "something else")
    del data["format"], data["version"]
    state = TrainingState(**data)
    _check(state, path)
    check_identity(state.identity, identity, path)
    return state


def damaged(path: Path, received: str) -> UserError:
    """What to raise for a state that cannot be gone on with."""
    return UserError(f"a training state of version {VERSION} in {path}", received, AGAIN)


def _check(state: TrainingState, path: Path) -> None:
    """Raise UserError unless every value has the type that it is written with."""
    counts = (state.stage, state.step, state.tokens)
    fine = (
        all(type(count) is int and 0 <= count < 1 << 62 for count in counts)
        and isinstance(state.identity, dict)
        and _are_weights(state.weights)
        and isinstance(state.measured, dict)
        and all(isinstance(name, str) and isinstance(nats, float) for name, nats in state.measured.items())
        and (state.optimizer is None or isinstance(state.optimizer, dict))
        and (state.best is None or _has(state.best, step=int, score=float, weights=dict, last=float))
        and (state.best is None or _are_weights(state.best["weights"]))
        and isinstance(state.kept, list)
        and all(_has(row, stage=str, step=int, steps=int, best=float, last=float) for row in state.kept)
    )
    if not fine:
        raise damaged(path, "values of other types")


def _are_weights(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(isinstance(name, str) and isinstance(weight, Tensor) for name, weight in value.items())


def _has(value: Any, **types: type) -> bool:
    """Whether this is a dict of exactly these keys, each of its type."""
    if not isinstance(value, dict) or set(value) != set(types):
        return False
    return all(type(value[name]) is kind for name, kind in types.items())


def check_identity(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise UserError, naming what differs, unless both describe the same run."""
    keys = sorted({*saved, *wanted})
    differing = [key for key in keys if saved.get(key) != wanted.get(key)]
    if differing:
        before, now = ("; ".join(f"{key} {_spelt(of.get(key))}" for key in differing) for of in (saved, wanted))
        raise UserError(
            f"{before}, as in the run saved in {path}",
            now,
            "resume with the options and files of that run, or delete that file to start again",
        )


def _spelt(value: Any) -> str:
    return printable(value if isinstance(value, str) else shown(value), 60)
