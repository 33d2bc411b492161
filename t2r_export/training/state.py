"""Saved state of a training run, for `--resume`.

Weights, the weights of the stage's best validation, optimizer moments and two counters are the whole state: data order,
start positions and learning rate are functions of the step, and redrawn feature maps follow from the previous draw. The
file is replaced atomically: a kill at any moment leaves the previous state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.archive import read_archive, write_archive
from t2r_export.checkpoints.plain import differences
from t2r_export.training.rises import Watch
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.files import existing_file

FORMAT = "t2r-training"
VERSION = 3
AGAIN = "delete it and start again without --resume"


@dataclass
class TrainingState:
    """Progress of a run: `step` steps of stage number `stage` are complete."""

    identity: dict[str, Any]  # equal for the same run: options, data, models
    weights: dict[str, Tensor]
    stage: int = 0
    step: int = 0
    optimizer: dict[str, Any] | None = None  # of the current stage; None before its first step
    tokens: int = 0
    measured: dict[str, float] = field(default_factory=dict)  # nats before training
    best: dict[str, Any] | None = None  # of the current stage: step, score, weights, last score
    watch: dict[str, Any] = field(default_factory=dict)  # of the current stage, fields of `rises.Watch`
    kept: list[dict[str, Any]] = field(default_factory=list)  # of completed stages, fields of `best.Kept`


def save_state(path: Path, state: TrainingState) -> None:
    """Write the state atomically. Raises UserError if the file cannot be written."""
    weights = dict(state.weights)  # plain: a module's state_dict has attributes
    write_archive(path, {"format": FORMAT, "version": VERSION, **vars(state), "weights": weights})


def load_state(path: Path, identity: Mapping[str, Any]) -> TrainingState:
    """Read the state of the run `identity`; tensors are on the CPU.

    Raises:
        UserError: another kind of file, or a run with other options, data or models; the message names them.
    """
    try:
        data = read_archive(existing_file(path, "a training state"), "a training state", AGAIN)
    except OSError as error:
        raise UserError(f"a training state in {path}", error.strerror or str(error), AGAIN) from error
    known = set(TrainingState.__dataclass_fields__) | {"format", "version"}
    if not isinstance(data, dict) or set(data) != known or (data["format"], data["version"]) != (FORMAT, VERSION):
        raise damaged(path, "something else")
    del data["format"], data["version"]
    state = TrainingState(**data)
    _check(state, path)
    check_identity(state.identity, identity, path)
    return state


def damaged(path: Path, received: str) -> UserError:
    """The error for a state that cannot be resumed."""
    return UserError(f"a training state of version {VERSION} in {path}", received, AGAIN)


def _check(state: TrainingState, path: Path) -> None:
    """Raise UserError unless all values have the expected types."""
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
        and (state.watch == {} or _is_watch(state.watch))
        and isinstance(state.kept, list)
        and all(_has(row, stage=str, step=int, steps=int, best=float, last=float) for row in state.kept)
    )
    if not fine:
        raise damaged(path, "values of other types")


def _are_weights(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(isinstance(name, str) and isinstance(weight, Tensor) for name, weight in value.items())


def _is_watch(value: Any) -> bool:
    """Whether `value` has the fields of a `rises.Watch` after some steps."""
    if not isinstance(value, dict) or set(value) != set(vars(Watch())):
        return False
    numbers = [value["factor"], *(value[name] for name in ("first", "lowest") if value[name] is not None)]
    losses = value["losses"]
    return isinstance(losses, list) and all(type(number) is float for number in (*numbers, *losses))


def _has(value: Any, **types: type) -> bool:
    """Whether `value` is a dict of exactly these keys with values of these types."""
    if not isinstance(value, dict) or set(value) != set(types):
        return False
    return all(type(value[name]) is kind for name, kind in types.items())


def check_identity(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise UserError unless both describe the same run; the message names the differences."""
    if differing := list(differences(saved, wanted)):
        before, now = ("; ".join(f"{row[0]} {_spelt(row[side])}" for row in differing) for side in (1, 2))
        raise UserError(
            f"{before}, as in the run saved in {path}",
            now,
            "resume with the options and files of that run, or delete that file to start again",
        )


def _spelt(value: Any) -> str:
    return printable(value if isinstance(value, str) else shown(value), 60)
