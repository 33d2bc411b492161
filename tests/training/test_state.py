from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disk import full_disk
from t2r_export.training.state import TrainingState, check_identity, load_state, save_state
from t2r_runtime.errors import UserError


def state() -> TrainingState:
    weight = torch.nn.Parameter(torch.randn(3, 4))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    weight.grad = torch.randn(3, 4)
    optimizer.step()
    return TrainingState(
        {"seed": 1, "stages": [{"stage": "task", "steps": 9}]},
        {"w": weight.detach()},
        stage=1,
        step=7,
        optimizer=optimizer.state_dict(),
        tokens=70,
        measured={"teacher": 1.5},
        best={"step": 5, "score": 1.25, "weights": {"w": torch.ones(3, 4)}, "last": 1.5},
        kept=[{"stage": "task", "step": 0, "steps": 9, "best": 1.0, "last": 2.0}],
    )


def test_state_round_trip(tmp_path: Path) -> None:
    saved = state()
    save_state(tmp_path / "state", saved)
    found = load_state(tmp_path / "state", saved.identity)
    assert torch.equal(found.weights["w"], saved.weights["w"])
    assert found.optimizer is not None
    assert saved.optimizer is not None
    for name, value in saved.optimizer["state"][0].items():
        assert torch.equal(found.optimizer["state"][0][name], value)
    assert found.optimizer["param_groups"] == saved.optimizer["param_groups"]
    for name in ("identity", "stage", "step", "tokens", "measured", "kept"):
        assert getattr(found, name) == getattr(saved, name)


def test_other_run_is_refused_with_difference(tmp_path: Path) -> None:
    saved = state()
    save_state(tmp_path / "state", saved)
    with pytest.raises(UserError) as caught:
        load_state(tmp_path / "state", {**saved.identity, "seed": 2, "batch": 4})
    assert "expected batch None; seed 1, as in the run saved in" in str(caught.value)
    assert "received batch 4; seed 2; resume with the options and files of that run, or delete" in str(caught.value)


def test_another_stage_is_named_with_its_numbers(tmp_path: Path) -> None:
    stages = [{"stage": name, "steps": 20, "learning_rate": 0.001} for name in ("transfer", "align", "distill")]
    saved = {"stages": stages, "length": 128}
    wanted = {"stages": [*stages[:2], {**stages[2], "steps": 81}], "length": 128}
    with pytest.raises(UserError, match=r"^expected stages\.2\.steps 20, as in .*received stages\.2\.steps 81; resume"):
        check_identity(saved, wanted, tmp_path)
    with pytest.raises(UserError, match=r"received stages\.2 None; resume"):
        check_identity(saved, {**saved, "stages": stages[:2]}, tmp_path)


def test_load_state_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "state"
    torch.save({"format": print}, path)
    with pytest.raises(
        UserError, match="a reference to .*print; do not trust this file; delete it and start again without"
    ):
        load_state(path, {})
    torch.save({"format": "something"}, path)
    with pytest.raises(UserError, match="received something else"):
        load_state(path, {})
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(UserError, match="a training state in"):
        load_state(path, {})


def test_unwritable_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="to be able to write"):
        save_state(tmp_path / "absent" / "state", state())


@pytest.mark.parametrize("size", [0, 1000, 2500])
def test_full_disk_keeps_earlier_state(tmp_path: Path, size: int) -> None:
    path = tmp_path / "state"
    save_state(path, state())
    before = path.read_bytes()
    assert len(before) > 2500
    with pytest.raises(UserError, match="to be able to write .*; choose another place, or make room"), full_disk(size):
        save_state(path, state())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("seed", range(40))
def test_damaged_state_is_refused(tmp_path: Path, seed: int) -> None:
    """A damaged state is refused, or loads equal to the saved one: only unread bytes have no checksum."""
    path, saved = tmp_path / "state", state()
    save_state(path, saved)
    content = bytearray(path.read_bytes())
    generator = torch.Generator().manual_seed(seed)
    for place in torch.randint(0, len(content), (1 + seed % 5,), generator=generator).tolist():
        content[place] ^= 1 << seed % 8
    path.write_bytes(content[: len(content) - 1000 * (seed % 2)])
    try:
        found = load_state(path, saved.identity)
    except UserError as error:
        message = str(error)
    else:
        assert torch.equal(found.weights["w"], saved.weights["w"])
        return
    assert message.isprintable()
    assert "start again without --resume" in message


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, value) for name in ("stage", "step", "tokens") for value in (-1, 1.5, True, None, 10**30, "1")),
        ("weights", []),
        ("weights", {"w": 1.0}),
        ("weights", {3: torch.ones(1)}),
        ("measured", {"teacher": "x"}),
        ("measured", None),
        ("optimizer", 3),
        ("best", {}),
        ("best", {"step": 1, "score": 1.0, "weights": {"w": 2}, "last": 1.0}),
        ("best", {"step": 1, "score": "1", "weights": {}, "last": 1.0}),
        ("kept", None),
        ("kept", [{"stage": "task"}]),
        ("identity", None),
        ("format", torch.ones(3)),
        ("version", [1]),
    ],
)
def test_wrong_types_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    saved = state()
    data = {"format": "t2r-training", "version": 3, **vars(saved), name: value}
    torch.save(data, tmp_path / "state")
    with pytest.raises(UserError, match="a training state of version 3 in .*; delete it and start again"):
        load_state(tmp_path / "state", saved.identity)


def test_long_difference_has_short_message(tmp_path: Path) -> None:
    saved, endless = state(), [1]
    for _ in range(60):
        endless = [endless, endless]  # type: ignore[list-item]
    saved.identity["seed"] = endless
    save_state(tmp_path / "state", saved)
    with pytest.raises(UserError, match="expected seed .*as in the run saved"):
        load_state(tmp_path / "state", {**saved.identity, "seed": 2})
