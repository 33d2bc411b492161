"""Runs that were stopped, killed, or met a full disk resume to bit-identical results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import texts
from disk import full_disk
from runs import changed, ended, entry, kill_at, resumed, stop_at
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_export.training.state import TrainingState, load_state, save_state
from t2r_runtime.errors import UserError


def saved(config: FinetuneConfig) -> TrainingState:
    """The state of an interrupted run."""
    return load_state(config.state_path, torch.load(config.state_path, weights_only=True)["identity"])


@pytest.mark.parametrize("kill", [3, 9])  # before the first regular state; within the second stage
def test_resume_after_kill_is_bit_identical(config: FinetuneConfig, whole: bytes, kill: int) -> None:
    kill_at(config, kill)
    assert not config.output.exists()
    assert resumed(config) == whole


def test_resume_needs_same_corpus(
    config: FinetuneConfig, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(config, 5)
    (text,), again = config.data, dataclasses.replace(config, resume=True)
    content = text.read_bytes()
    text.unlink()
    with pytest.raises(UserError, match="which does not exist"):
        finetune(again)
    text.write_bytes(content[:-40])
    with pytest.raises(UserError, match="expected data .* resume with the options and files of that run"):
        finetune(again)
    text.write_bytes(content)
    monkeypatch.setenv("T2R_CACHE", str(tmp_path / "cache"))  # the token cache may be gone too
    assert resumed(config) == whole


def test_full_disk_ends_run_that_resumes(config: FinetuneConfig, whole: bytes) -> None:
    earlier = '{"event": "earlier"}\n' * 400_000  # longer than a state: the log reaches the limit
    config.log_path.write_text(earlier)
    with full_disk(len(earlier) + 1500), pytest.raises(UserError, match=r"to be able to write .*\.jsonl; .*make room"):
        finetune(config)
    added = config.log_path.read_text()[len(earlier) :].splitlines()
    assert len(added) > 1 and all(json.loads(line) for line in added)
    assert config.state_path.exists() and not config.output.exists()
    assert resumed(config) == whole


def test_interrupt_saves_state(config: FinetuneConfig, whole: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    stop_at(config, 8)
    assert "stopped after step 2 of distill; continue with --resume" in capsys.readouterr().err
    assert resumed(config) == whole


@pytest.mark.slow
def test_muon_learns_and_resumes(config: FinetuneConfig) -> None:
    config = dataclasses.replace(config, optimizer="muon")
    whole = ended(config)
    stop_at(config, 9)
    assert resumed(config) == whole
    nats = entry(config)["evaluation"]
    assert nats["finetuned"] < nats["student"]


@pytest.mark.parametrize("kill, targets", [(9, "all"), (15, "attention")])  # in distill, and in the stage after it
def test_resume_with_lora_equals_uninterrupted(config: FinetuneConfig, kill: int, targets: str) -> None:
    config = dataclasses.replace(config, lora=True, lora_targets=targets, checkpoint_every=2)
    whole = ended(config)
    kill_at(config, kill)
    assert any("parametrizations" in name for name in saved(config).weights)
    assert resumed(config) == whole


@pytest.mark.parametrize("name", ["rfa", "favor"])
def test_random_feature_directions_are_in_state(name: str, config: FinetuneConfig) -> None:
    """They are redrawn in every step, and a resumed run is still bit-identical."""
    layer = LinearConfig(6, feature_map=name, normalizer="rms_norm", redraw=True)
    texts.write_student(config.model, mixer=layer)
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill", "3,4", "0.03,0.01"))
    whole = ended(config)
    assert "blocks.0.parts.0.inner.maps.joint.weight" in changed(config.model, config.output.with_name("whole.pt"))
    stop_at(config, 4)
    assert resumed(config) == whole


def test_inexact_state_changes_result(config: FinetuneConfig, whole: bytes, stopped: bytes) -> None:
    """Shows that the byte comparison above is sensitive."""
    config.state_path.write_bytes(stopped)
    state = saved(config)
    assert state.optimizer is not None
    state.optimizer["state"][0]["exp_avg"].view(-1)[0] *= 1.01
    save_state(config.state_path, state)
    assert resumed(config) != whole


def test_runs_do_not_overwrite_each_other(config: FinetuneConfig, stopped: bytes) -> None:
    config.state_path.write_bytes(stopped)
    with pytest.raises(UserError, match="continue with --resume, or delete that file to start again"):
        finetune(config)
    with pytest.raises(UserError, match="expected length 16, as in the run saved in .*; received length 8;"):
        finetune(dataclasses.replace(config, resume=True, length=8))
    config.data[0].write_text("abc abc " * 100)
    with pytest.raises(UserError, match="expected data [0-9a-f]+..., as in the run"):
        finetune(dataclasses.replace(config, resume=True))


def drop_weight(state: TrainingState) -> None:
    del state.weights["embedding.weight"]


def widen(state: TrainingState) -> None:
    state.weights["norm.weight"] = torch.ones(3)


def other_moments(state: TrainingState) -> None:
    assert state.optimizer is not None
    state.optimizer["state"][0]["exp_avg"] = torch.ones(3, 1)


def older_groups(state: TrainingState) -> None:
    """As if all rates were equal, as they once were."""
    assert state.optimizer is not None
    groups = state.optimizer["param_groups"]
    groups[:] = [{**groups[0], "params": [number for group in groups for number in group["params"]]}]


@pytest.mark.parametrize(
    "change, message",
    [
        (older_groups, "groups of learning rates in .*; received the groups of an older version; finish the run with"),
        (drop_weight, "tensors that its config describes; received missing embedding.weight"),
        (widen, "the shapes that its config describes; received norm.weight 3 instead"),
        (other_moments, r"a training state of version 3 in .*; received exp_avg of the shape \(3, 1\)"),
        (lambda state: vars(state).update(optimizer={}), "a training state of version 3"),
        (lambda state: vars(state)["optimizer"].update(state={}, param_groups=[]), "a training state of version 3"),
        (
            lambda state: vars(state).update(stage=99),
            "a training state of version 3 in .*; received step . of stage 99",
        ),
        (lambda state: vars(state).update(step=10**6), "a training state of version 3 in .*; received step 1000000 of"),
    ],
)
def test_invalid_state_is_refused(
    config: FinetuneConfig, stopped: bytes, change: Callable[[TrainingState], None], message: str
) -> None:
    config.state_path.write_bytes(stopped)
    state = saved(config)
    change(state)
    save_state(config.state_path, state)
    with pytest.raises(UserError, match=message):
        finetune(dataclasses.replace(config, resume=True))
