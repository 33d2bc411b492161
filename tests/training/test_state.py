from __future__ import annotations

from pathlib import Path

import pytest
import torch

from t2r_export.training.state import TrainingState, load_state, save_state
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
    )


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = state()
    save_state(tmp_path / "state", saved)
    found = load_state(tmp_path / "state", saved.identity)
    assert torch.equal(found.weights["w"], saved.weights["w"])
    assert found.optimizer is not None
    assert saved.optimizer is not None
    for name, value in saved.optimizer["state"][0].items():
        assert torch.equal(found.optimizer["state"][0][name], value)
    assert found.optimizer["param_groups"] == saved.optimizer["param_groups"]
    for name in ("identity", "stage", "step", "tokens", "measured"):
        assert getattr(found, name) == getattr(saved, name)


def test_another_runs_state_is_refused_and_the_difference_named(tmp_path: Path) -> None:
    saved = state()
    save_state(tmp_path / "state", saved)
    with pytest.raises(UserError) as caught:
        load_state(tmp_path / "state", {**saved.identity, "seed": 2, "batch": 4})
    assert "expected batch None; seed 1, as in the run saved in" in str(caught.value)
    assert "received batch 4; seed 2; resume with the options and files of that run, or delete" in str(caught.value)


def test_no_code_is_run_and_no_other_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "state"
    torch.save({"format": print}, path)
    with pytest.raises(UserError, match="a training state in .*delete it and start again without --resume"):
        load_state(path, {})
    torch.save({"format": "something"}, path)
    with pytest.raises(UserError, match="received something else"):
        load_state(path, {})
    path.write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(UserError, match="a training state in"):
        load_state(path, {})


def test_an_unwritable_place_is_the_users_to_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="to be able to write"):
        save_state(tmp_path / "absent" / "state", state())
