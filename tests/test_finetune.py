"""Finetuning end to end: what is trained, learning, interruption and resuming."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
import texts
from disk import full_disk
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import SEPARATOR, FinetuneConfig
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert, provenance
from t2r_export.data.corpus import Windows
from t2r_export.errors import CheckFailed
from t2r_export.finetune import finetune
from t2r_export.training import muon
from t2r_export.training import trainer as training
from t2r_export.training.inputs import original
from t2r_export.training.stages import Distill
from t2r_export.training.state import TrainingState, load_state, save_state
from t2r_runtime.errors import UserError

PLAN = parse_plan("transfer,distill,task", "7,6,5", "0.03,0.01,0.003")

# Small rates: Adam's first step has the sign of a gradient, and where that is next to nothing the order in which
# two processes add decides the sign. What align does at its rate is for nothing, and both must see that.
SMALL_RATES = parse_plan("transfer,align,distill,task", "7,5,28,10", "1e-3,9,1e-3,1e-3")

# --multi_gpu starts the processes; that there is no GPU is for the program to see. Port 0 is any free one.
TWO_PROCESSES = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
TWO_PROCESSES += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
TWO_SHARDS = (*("--use_fsdp" if word == "--multi_gpu" else word for word in TWO_PROCESSES), "--fsdp_version", "2")

PASSED = (
    "length",
    "batch",
    "device",
    "checkpoint_every",
    "validate_every",
    "lora",
    "resume",
    "accumulate",
    "optimizer",
    "recompute",
)

# what each of two processes runs: a config from JSON, until one of them is interrupted in a step, if that is not 0
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import torch
from t2r_export.data.corpus import Windows
from t2r_export.finetune import finetune
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.training import muon

options = json.loads(sys.argv[1])
for name in ("model", "output"):
    options[name] = Path(options[name])
options["data"] = tuple(map(Path, options["data"]))
options["plan"] = parse_plan(*options["plan"])
interrupted, batch_of = int(sys.argv[2]), Windows.__call__

def batch(self, asked):
    if asked == interrupted and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGINT)
    return batch_of(self, asked)

if interrupted:
    Windows.__call__ = batch
muon.fast_dtype = lambda device: torch.float32  # bfloat16 would make more of the rounding of sums in another order
finetune(FinetuneConfig(**options))
"""


@pytest.fixture
def config(tmp_path: Path) -> FinetuneConfig:
    return texts.run(tmp_path, PLAN, validate_every=5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What an uninterrupted run of `config` writes."""
    config = texts.run(tmp_path_factory.mktemp("whole"), PLAN, validate_every=5)
    finetune(config)
    return config.output.read_bytes()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The state of a run of `config` that was stopped in its second stage."""
    config = texts.run(tmp_path_factory.mktemp("stopped"), PLAN, validate_every=5)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, config, 8)
    return config.state_path.read_bytes()


def run_in_two_processes(
    config: FinetuneConfig, how: Sequence[str] = TWO_PROCESSES, interrupted: int = 0
) -> subprocess.CompletedProcess[str]:
    options: dict[str, Any] = {
        "model": str(config.model),
        "output": str(config.output),
        "data": [str(path) for path in config.data],
        "plan": [",".join(str(getattr(p, f)) for p in config.plan) for f in ("stage", "steps", "learning_rate")],
        **{name: getattr(config, name) for name in PASSED},
    }
    script = config.output.with_suffix(".py")
    script.write_text(PROGRAM)
    command = [sys.executable, *how, str(script), json.dumps(options), str(interrupted)]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))


def changed(before: Path, after: Path) -> set[str]:
    old, new = (checkpoint.load(path).model.state_dict() for path in (before, after))
    return {name for name, weight in old.items() if not torch.equal(weight, new[name])}


def test_all_stages_reduce_loss(config: FinetuneConfig) -> None:
    plan = parse_plan("transfer,align,distill", "40,40,80", "0.01,0.01,0.01")
    config = dataclasses.replace(config, plan=plan)
    report = finetune(config)
    lines = [json.loads(line) for line in config.log_path.read_text().splitlines()]
    for stage, share in (("transfer", 0.7), ("align", 0.8), ("distill", 0.85)):
        losses = [line["validation_loss"] for line in lines if line.get("stage") == stage and "validation_loss" in line]
        assert losses[-1] < share * max(losses)
    (layers,) = [line["layers"] for line in lines if line.get("step") == 80 and "layers" in line]
    assert [set(layer) for layer in layers] == [{"dead_queries", "dead_keys", "smallest_normalizer"}] * 3
    assert lines[0]["event"] == "start"
    assert lines[-1]["event"] == "done"
    assert lines[-1]["nats"] == report.after.nats
    assert not config.state_path.exists()


def test_task_learns_text(config: FinetuneConfig) -> None:
    report = finetune(dataclasses.replace(config, plan=parse_plan("task", "100", "0.02"), validate_every=50))
    assert report.teacher is None
    assert report.after.nats < 0.75 * report.before.nats
    assert report.tokens == 100 * 4 * 16


def test_transfer_keeps_other_weights(config: FinetuneConfig) -> None:
    finetune(dataclasses.replace(config, plan=parse_plan("transfer", "3")))
    maps = tuple(f"inner.maps.{side}.{part}" for side in "qk" for part in ("weight", "bias"))
    assert changed(config.model, config.output) == {f"blocks.{i}.parts.0.{name}" for i in range(3) for name in maps}


def test_distill_changes_every_weight(config: FinetuneConfig) -> None:
    finetune(dataclasses.replace(config, plan=parse_plan("distill", "3")))
    assert changed(config.model, config.output) == set(checkpoint.load(config.model).model.state_dict())


def test_lora_changes_only_projections_and_feature_maps(config: FinetuneConfig) -> None:
    finetune(dataclasses.replace(config, plan=parse_plan("distill", "3"), lora=True, lora_rank=2))
    maps = tuple(f"inner.maps.{side}.{part}" for side in "qk" for part in ("weight", "bias"))
    names = [*(f"{name}.weight" for name in "qkvo"), *maps]
    assert changed(config.model, config.output) == {f"blocks.{i}.parts.0.{name}" for i in range(3) for name in names}
    entry = checkpoint.load(config.output).provenance["finetune"][0]
    assert (entry["lora_rank"], entry["lora_alpha"]) == (2, 16.0)


def test_complete_run_is_reported(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """`--resume` over a run's own result trains nothing, and over that of another run is refused."""
    report = finetune(config)
    before = config.output.read_bytes()
    capsys.readouterr()
    again = finetune(dataclasses.replace(config, resume=True))
    assert capsys.readouterr().err == f"this run is complete: {config.output}\n"
    assert (again.teacher, again.before, again.after, again.tokens) == (
        report.teacher,
        report.before,
        report.after,
        report.tokens,
    )
    with pytest.raises(UserError, match="expected seed 0, as in the run saved in .*tuned.pt; received seed 7; "):
        finetune(dataclasses.replace(config, resume=True, seed=7))
    with pytest.raises(UserError, match="received a trained model; name another file, or give --force"):
        finetune(config)
    assert config.output.read_bytes() == before
    checkpoint.save(config.output, checkpoint.load(config.model).model, texts.tokenizer(), {"finetune": ["odd"]})
    with pytest.raises(UserError, match="as in the run saved in "):
        finetune(dataclasses.replace(config, resume=True))


def test_muon_learns_and_resumes(config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(config, optimizer="muon")
    whole = dataclasses.replace(config, output=tmp_path / "whole.pt")
    report = finetune(whole)
    assert report.after.nats < report.before.nats
    stop_at(monkeypatch, config, 9)
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole.output.read_bytes()


def test_accumulated_gradients_are_those_of_the_batch(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill,task", "7,6,5", "1e-3"))
    alone = dataclasses.replace(config, output=tmp_path / "alone.pt")
    parts = dataclasses.replace(config, output=tmp_path / "parts.pt", accumulate=3)  # of 4 rows: 2 and 2
    for each in (alone, parts):
        finetune(each)
    logs = [[json.loads(line) for line in c.log_path.read_text().splitlines()] for c in (alone, parts)]
    losses = [[line["loss"] for line in log if "loss" in line] for log in logs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    stop_at(monkeypatch, dataclasses.replace(parts, output=config.output), 9)
    with pytest.raises(UserError, match="expected accumulate 3, as in the run saved"):
        finetune(dataclasses.replace(config, resume=True))
    finetune(dataclasses.replace(parts, output=config.output, resume=True))
    assert config.output.read_bytes() == parts.output.read_bytes()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_recomputed_run_is_the_same(config: FinetuneConfig, tmp_path: Path, precision: str) -> None:
    config = dataclasses.replace(config, plan=parse_plan("align,distill,task", "3,4,2", "0.01"), precision=precision)
    anew = dataclasses.replace(config, output=tmp_path / "anew.pt", recompute=True)
    for each in (config, anew):
        finetune(each)
    assert config.output.read_bytes() == anew.output.read_bytes()
    with pytest.raises(UserError, match="no --loss dropout, whose masks .* with --optimizer recompute"):
        dataclasses.replace(anew, dropout=0.1)


@pytest.mark.parametrize("kill", [9, 15])  # while adapters are trained: in distill, and in the stage after it
def test_resume_with_lora_equals_uninterrupted(config: FinetuneConfig, tmp_path: Path, kill: int) -> None:
    config = dataclasses.replace(config, lora=True, checkpoint_every=2)
    whole = dataclasses.replace(config, output=tmp_path / "whole.pt")
    finetune(whole)
    kill_at(config, kill)
    saved = torch.load(config.state_path, weights_only=True)
    assert any("parametrizations" in name for name in saved["weights"])
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole.output.read_bytes()


def test_lora_needs_distill_or_task(config: FinetuneConfig) -> None:
    with pytest.raises(UserError, match="the stage distill or task with --lora; received none; "):
        finetune(dataclasses.replace(config, plan=parse_plan("transfer", "3"), lora=True))


def test_output_has_provenance_and_is_reproducible(config: FinetuneConfig, tmp_path: Path) -> None:
    report = finetune(config)
    found = checkpoint.load(config.output)
    assert found.provenance["convert"]["layers"] == "all"
    (entry,) = found.provenance["finetune"]
    assert [stage["steps"] for stage in entry["stages"]] == [7, 6, 5]
    assert entry["tokens"] == 18 * 4 * 16
    assert entry["files"] == ["text"]
    assert entry["model"] == checkpoint.load(config.model).sha256
    assert report.teacher is not None
    assert entry["evaluation"]["teacher"] == report.teacher.nats
    assert entry["evaluation"]["finetuned"] == report.after.nats
    again = dataclasses.replace(config, output=tmp_path / "again.pt", checkpoint_every=100)
    finetune(again)
    assert again.output.read_bytes() == config.output.read_bytes()
    assert finetune(dataclasses.replace(again, seed=1, force=True)).after.nats != report.after.nats


def test_hybrid_with_explicit_teacher(config: FinetuneConfig, tmp_path: Path) -> None:
    student, teacher = texts.write_student(tmp_path / "hybrid.pt", "0,2"), texts.write_teacher(tmp_path / "teacher.pt")
    implicit = dataclasses.replace(config, model=student)
    explicit = dataclasses.replace(implicit, teacher=teacher, output=tmp_path / "explicit.pt")
    nats = [finetune(c).after.nats for c in (implicit, explicit)]
    assert nats[0] == nats[1]
    twice = dataclasses.replace(explicit, model=explicit.output, output=tmp_path / "twice.pt")
    finetune(twice)
    assert len(checkpoint.load(twice.output).provenance["finetune"]) == 2


@pytest.mark.parametrize("kill", [3, 9])  # before the first regular state; within the second stage
def test_resume_after_kill_is_bit_identical(config: FinetuneConfig, whole: bytes, kill: int) -> None:
    kill_at(config, kill)
    assert not config.output.exists()
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole


def test_resume_needs_same_corpus(
    config: FinetuneConfig, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, config, 5)
    (text,), again = config.data, dataclasses.replace(config, resume=True)
    content = text.read_bytes()
    text.unlink()
    with pytest.raises(UserError, match="which does not exist"):
        finetune(again)
    text.write_bytes(content[:-40])
    with pytest.raises(UserError, match="expected data .* resume with the options and files of that run"):
        finetune(again)
    text.write_bytes(content)
    monkeypatch.setenv("T2R_CACHE", str(tmp_path / "cache"))  # what was tokenized may be gone too
    finetune(again)
    assert config.output.read_bytes() == whole


def test_full_disk_ends_run_that_resumes(config: FinetuneConfig, whole: bytes) -> None:
    earlier = '{"event": "earlier"}\n' * 400_000  # longer than a state: the log is what meets the limit
    config.log_path.write_text(earlier)
    with full_disk(len(earlier) + 1500), pytest.raises(UserError, match=r"to be able to write .*\.jsonl; .*make room"):
        finetune(config)
    added = config.log_path.read_text()[len(earlier) :].splitlines()
    assert len(added) > 1 and all(json.loads(line) for line in added)
    assert config.state_path.exists() and not config.output.exists()
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole


def test_start_positions_are_part_of_identity(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gated student of a rotary model gets them unasked, in a run that was stopped too; another number is another
    model."""
    texts.write_student(config.model, mixer=LinearConfig(small.K, update_rule="gated", gate="data"))
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill", "3,4", "0.01"))
    whole = dataclasses.replace(config, output=tmp_path / "whole.pt")
    finetune(whole)
    assert checkpoint.load(whole.output).provenance["finetune"][0]["start_positions"] == 4096
    stop_at(monkeypatch, config, 5)
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole.output.read_bytes()
    other = dataclasses.replace(config, output=tmp_path / "other.pt", start_positions=0)
    finetune(other)
    assert checkpoint.load(other.output).provenance["finetune"][0]["start_positions"] == 0
    assert changed(config.output, other.output)
    window = texts.write_student(tmp_path / "window.pt", mixer=WindowConfig(5, 1))
    with pytest.raises(UserError, match="0 start positions; received 9, and layers whose states depend on"):
        finetune(
            dataclasses.replace(other, model=window, plan=parse_plan("distill", "1"), start_positions=9, force=True)
        )


@pytest.mark.parametrize("first, last, same", [(38, 40, True), (36, 38, False)])
def test_only_report_reads_test_part(config: FinetuneConfig, tmp_path: Path, first: int, last: int, same: bool) -> None:
    """Other letters in the last documents change the figures of the report, and in those before what chooses."""
    report = finetune(config)
    documents = config.data[0].read_text().split(f"\n{SEPARATOR}\n")
    other = dataclasses.replace(config, data=(tmp_path / "other",), output=tmp_path / "other.pt")
    documents[first:last] = [
        document.translate(str.maketrans("abcdef", "bcdefa")) for document in documents[first:last]
    ]
    other.data[0].write_text(f"\n{SEPARATOR}\n".join(documents))
    found = finetune(other)
    assert (validations(config, "distill") == validations(other, "distill")) == same
    assert (found.before.nats != report.before.nats) == same
    if same:
        assert changed(config.output, other.output) == set()


def validations(config: FinetuneConfig, stage: str) -> dict[int, float]:
    """Nats per token on the validation windows, by step."""
    lines = [json.loads(line) for line in config.log_path.read_text().splitlines()]
    return {r["step"]: r["validation_nats"] for r in lines if r.get("stage") == stage and "validation_nats" in r}


@pytest.mark.parametrize("lora", [False, True])
def test_stage_keeps_best_weights(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str], lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stage that climbs, away from its teacher."""
    down = Distill.forward
    monkeypatch.setattr(Distill, "forward", lambda stage, batch: -down(stage, batch))
    config = dataclasses.replace(config, plan=parse_plan("task,distill", "20,10", "0.03,0.3"), lora=lora, hidden=0.0)
    report = finetune(config)
    task, distill = report.kept
    nats = validations(config, "distill")
    assert list(nats) == [0, 5, 10]
    assert distill.last == nats[10] > nats[0] + 0.05
    assert (distill.stage, distill.step, distill.steps, distill.best) == ("distill", 0, 10, nats[0])
    said = capsys.readouterr().err
    line = f"distill keeps the weights from before it: {nats[0]:.4f} in validation, and {nats[10]:.4f} after the last"
    assert line in said
    assert ("worse than before" in said) == (report.after.nats > report.before.nats)
    entry = checkpoint.load(config.output).provenance["finetune"][0]
    assert entry["kept_steps"] == [task.step, 0]
    alone = dataclasses.replace(config, plan=config.plan[:1], output=config.output.with_name("alone.pt"), hidden=5.0)
    finetune(alone)
    assert changed(alone.output, config.output) == set()


def test_worse_student_is_reported(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """On its test part, of other letters than what it was trained on and what chose."""
    config.data[0].write_text(f"\n{SEPARATOR}\n".join(["ab ab ab ab ab ab."] * 38 + ["gh hg gh hg gh hg."] * 2))
    report = finetune(dataclasses.replace(config, plan=parse_plan("task", "30", "0.02")))
    difference = report.after.nats - report.before.nats
    assert difference > 0.5
    assert f"the student is worse than before: {difference:+.4f} nats/token\n" in capsys.readouterr().err


def test_best_weights_survive_stop(config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a validation before the stop, which none after it equals; and a stop at a validation still makes it."""
    config = dataclasses.replace(config, plan=parse_plan("task", "60", "0.8"), validate_every=4)
    whole = dataclasses.replace(config, output=tmp_path / "whole.pt")
    (kept,) = finetune(whole).kept
    assert 0 < kept.step < 60
    for stop in (kept.step - 1, kept.step + 1):
        stop_at(monkeypatch, config, stop)
        (again,) = finetune(dataclasses.replace(config, resume=True, force=True)).kept
        assert again == kept
        assert config.output.read_bytes() == whole.output.read_bytes()
        config.output.unlink()


def run_until(monkeypatch: pytest.MonkeyPatch, config: FinetuneConfig, step: int, number: int) -> None:
    """Run until a signal comes in the middle of a step."""
    batch_of = Windows.__call__

    def batch(self: Windows, asked: int) -> torch.Tensor:
        if asked == step:
            os.kill(os.getpid(), number)
        return batch_of(self, asked)

    with monkeypatch.context() as patch:
        patch.setattr(Windows, "__call__", batch)
        finetune(config)


def stop_at(monkeypatch: pytest.MonkeyPatch, config: FinetuneConfig, step: int) -> None:
    """Run until Ctrl-C."""
    with pytest.raises(KeyboardInterrupt):
        run_until(monkeypatch, config, step, signal.SIGINT)


def kill_at(config: FinetuneConfig, step: int) -> None:
    """Run in a fork, until it is killed."""
    if (child := os.fork()) == 0:
        try:
            run_until(pytest.MonkeyPatch(), config, step, signal.SIGKILL)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_interrupt_saves_state(
    config: FinetuneConfig, whole: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at(monkeypatch, config, 8)
    assert "stopped after step 2 of distill; continue with --resume" in capsys.readouterr().err
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole


@pytest.mark.parametrize("name", ["rfa", "favor"])
def test_random_feature_directions_are_in_state(
    name: str, config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn anew in every step, and still a run that was stopped gives the bytes of one that was not."""
    layer = LinearConfig(6, feature_map=name, normalizer="rms_norm", redraw=True)
    texts.write_student(config.model, mixer=layer)
    plan = parse_plan("transfer,distill", "3,4", "0.03,0.01")
    config = dataclasses.replace(config, plan=plan)
    whole = dataclasses.replace(config, output=tmp_path / "whole.pt")
    finetune(whole)
    assert "blocks.0.parts.0.inner.maps.joint.weight" in changed(config.model, whole.output)
    stop_at(monkeypatch, config, 4)
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == whole.output.read_bytes()


def test_inexact_state_changes_result(config: FinetuneConfig, whole: bytes, stopped: bytes) -> None:
    """What makes the comparison of bytes above worth something."""
    config.state_path.write_bytes(stopped)
    identity = torch.load(config.state_path, weights_only=True)["identity"]
    state = load_state(config.state_path, identity)
    assert state.optimizer is not None
    state.optimizer["state"][0]["exp_avg"].view(-1)[0] *= 1.01
    save_state(config.state_path, state)
    finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() != whole


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


@pytest.mark.parametrize(
    "change, message",
    [
        (drop_weight, "tensors that its config describes; received missing embedding.weight"),
        (widen, "the shapes that its config describes; received norm.weight 3 instead"),
        (other_moments, r"a training state of version 2 in .*; received exp_avg of the shape \(3, 1\)"),
        (lambda state: vars(state).update(optimizer={}), "a training state of version 2"),
        (
            lambda state: vars(state).update(optimizer={"state": {}, "param_groups": []}),
            "a training state of version 2",
        ),
        (
            lambda state: vars(state).update(stage=99),
            "a training state of version 2 in .*; received step . of stage 99",
        ),
        (lambda state: vars(state).update(step=10**6), "a training state of version 2 in .*; received step 1000000 of"),
    ],
)
def test_invalid_state_is_refused(
    config: FinetuneConfig, stopped: bytes, change: Callable[[TrainingState], None], message: str
) -> None:
    config.state_path.write_bytes(stopped)
    state = load_state(config.state_path, torch.load(config.state_path, weights_only=True)["identity"])
    change(state)
    save_state(config.state_path, state)
    with pytest.raises(UserError, match=message):
        finetune(dataclasses.replace(config, resume=True))


def test_non_finite_loss_ends_run(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    step_of = training.Trainer._step
    steps: list[int] = []

    def step(self: training.Trainer, *arguments: Any) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 9:
            with torch.no_grad():
                self.student.norm.weight[0] = torch.nan
        return step_of(self, *arguments)

    monkeypatch.setattr(training.Trainer, "_step", step)
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

    def step(self: training.Trainer, *arguments: Any) -> torch.Tensor:
        kept.append({name: w.detach().clone() for name, w in self.student.state_dict().items()})
        return step_of(self, *arguments)

    def overflow(module: torch.nn.Module, inputs: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        return output[0] * (torch.inf if len(kept) >= 3 and torch.is_grad_enabled() else 1.0), output[1]

    def start(self: training.Trainer, *arguments: Any) -> None:
        student.append(self.student)
        self.student.blocks[1].mixers[0].inner.register_forward_hook(overflow)
        stage_of(self, *arguments)

    student: list[Any] = []
    step_of, stage_of = training.Trainer._step, training.Trainer._stage
    monkeypatch.setattr(training.Trainer, "_step", step)
    monkeypatch.setattr(training.Trainer, "_stage", start)
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


def test_two_processes_share_batches(config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They resume what one began, and have its losses."""
    config = dataclasses.replace(config, plan=SMALL_RATES, accumulate=2)
    alone = dataclasses.replace(config, output=tmp_path / "alone.pt")
    expected = finetune(alone)
    stop_at(monkeypatch, config, 4)
    done = run_in_two_processes(dataclasses.replace(config, resume=True))
    assert done.returncode == 0, done.stderr
    entry = checkpoint.load(config.output).provenance["finetune"][0]
    assert entry["evaluation"]["finetuned"] == pytest.approx(expected.after.nats, abs=1e-5)
    logs = [[json.loads(line) for line in c.log_path.read_text().splitlines()] for c in (alone, config)]
    losses = [[line["loss"] for line in log if "loss" in line and line["stage"] != "align"] for log in logs]
    assert entry["kept_steps"] == [kept.step for kept in expected.kept]
    assert entry["kept_steps"][1] == 0
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(losses[0]) >= 9
    assert entry["tokens"] == expected.tokens


@pytest.mark.parametrize("optimizer, interrupted", [("adamw", 25), ("muon", 0)])
def test_two_processes_hold_shares(
    optimizer: str, interrupted: int, config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They resume what one began, have its losses, and one resumes what they began."""
    monkeypatch.setattr(muon, "fast_dtype", lambda device: torch.float32)
    config = dataclasses.replace(config, plan=SMALL_RATES, accumulate=2, optimizer=optimizer, recompute=not interrupted)
    alone = dataclasses.replace(config, output=tmp_path / "alone.pt")
    expected = finetune(alone)
    stop_at(monkeypatch, config, 4)
    config = dataclasses.replace(config, resume=True)
    done = run_in_two_processes(config, TWO_SHARDS, interrupted)
    if interrupted:
        assert "stopped after step 20 of distill; continue with --resume" in done.stderr
        finetune(config)
    else:
        assert done.returncode == 0, done.stderr
    entry = checkpoint.load(config.output).provenance["finetune"][0]
    assert entry["evaluation"]["finetuned"] == pytest.approx(expected.after.nats, rel=1e-5)
    assert entry["kept_steps"] == [kept.step for kept in expected.kept]
    assert entry["tokens"] == expected.tokens
    logs = [[json.loads(line) for line in c.log_path.read_text().splitlines()] for c in (alone, config)]
    found = [{(line["stage"], line["step"]): line["loss"] for line in log if "loss" in line} for log in logs]
    for stage, step in found[0]:
        if stage != "align":
            assert found[1][stage, step] == pytest.approx(found[0][stage, step], rel=1e-5), (stage, step)


def test_indivisible_batch_is_refused(config: FinetuneConfig) -> None:
    done = run_in_two_processes(dataclasses.replace(config, batch=3))
    assert done.returncode != 0
    assert "a batch size divisible by the 2 processes; received 3" in done.stderr


def test_bfloat16_learns_as_well(config: FinetuneConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill", "20,30", "0.03,0.01"), validate_every=50)
    wide = finetune(config)
    narrow = finetune(dataclasses.replace(config, precision="bf16", output=tmp_path / "bf16.pt"))
    assert narrow.after.nats != wide.after.nats
    assert narrow.after.nats == pytest.approx(wide.after.nats, abs=0.2)


@pytest.mark.gpu
def test_cuda_learns_in_bfloat16(config: FinetuneConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill", "20,30", "0.03,0.01"), validate_every=50)
    expected = finetune(config)
    found = finetune(dataclasses.replace(config, device="cuda", output=tmp_path / "cuda.pt"))
    assert found.after.nats == pytest.approx(expected.after.nats, abs=0.2)


def test_mismatched_inputs_are_refused(config: FinetuneConfig, tmp_path: Path) -> None:
    def message(**changes: Any) -> str:
        with pytest.raises(UserError) as caught:
            finetune(dataclasses.replace(config, **changes))
        return str(caught.value)

    assert "a file name to write to; received the folder" in message(output=tmp_path)
    assert "to be able to write" in message(output=tmp_path / "absent" / "tuned.pt")
    assert "tokens of text to measure on" in message(length=300)
    other = texts.write_teacher(tmp_path / "other.pt", dataclasses.replace(texts.TEACHER, vocab_size=30))
    assert f"a teacher with the student's vocabulary of {texts.TEACHER.vocab_size}" in message(teacher=other)
    learned = small.model(dataclasses.replace(small.GPT2, vocab_size=30))
    checkpoint.save(tmp_path / "learned.pt", learned, texts.tokenizer(), {})
    assert "a length of at most 40, the model's last position; received 41" in message(
        model=tmp_path / "learned.pt", length=41, plan=parse_plan("task")
    )
    if not torch.cuda.is_available():
        assert "a CUDA device" in message(device="cuda")


def test_teacher_is_rebuilt_from_conversion(config: FinetuneConfig) -> None:
    converted = checkpoint.load(config.model)
    ids = torch.arange(9)[None] % 7
    torch.testing.assert_close(original(converted)(ids), small.model(texts.TEACHER)(ids), rtol=0, atol=0)
    assert converted.config != original(converted).config


def test_rebuilt_teacher_has_source_layers() -> None:
    config = dataclasses.replace(texts.TEACHER, layers=(small.SOFTMAX, WindowConfig(3, 0), small.SOFTMAX))
    source = small.checkpoint(config)
    for layers in ("2", "0"):  # one conversion after the other: the source is that of the first
        model = convert(source.model, LinearConfig(small.K), layers)
        source = dataclasses.replace(source, config=model.config, model=model, provenance=provenance(source))
    teacher = original(source)
    assert teacher.config == config.build()
    assert torch.equal(teacher(ids := torch.arange(9)[None] % 7), small.model(config)(ids))
    assert not {p.data_ptr() for p in teacher.parameters()} & {p.data_ptr() for p in source.model.parameters()}


def layers(change: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """The teacher's layers as plain data, with a change of each one's parts."""
    plain: list[dict[str, Any]] = to_plain(texts.TEACHER.build())["layers"]
    for layer in plain:
        change(layer["parts"])
    return plain


@pytest.mark.parametrize(
    "history, received",
    [
        ({"finetune": []}, "a model trained since its conversion"),
        ({}, "a model without its source in the provenance"),
        ({"convert": "yes"}, "a model without its source in the provenance"),
        ({"convert": {}}, "a model without its source in the provenance"),
        ({"width": 999}, "a model that differs from its source in more than its mixers"),
        ({"layers": layers(lambda parts: parts[1].update(activation="gelu_tanh"))}, "in more than its mixers"),
        ({"layers": layers(lambda parts: parts[0].update(kv_heads=1))}, "instead of"),
        ({"layers": layers(lambda parts: None)[:2]}, "a model that differs from its source in more than its mixers"),
        ({"layers": layers(lambda parts: parts.__setitem__(0, {"kind": "lstm"}))}, "missing blocks"),
        (
            {"layers": layers(lambda parts: parts[0].update(inside=to_plain(LinearConfig(small.K + 1))))},
            "instead of",
        ),
    ],
)
def test_unavailable_teacher_is_refused(history: dict[str, Any], received: str, config: FinetuneConfig) -> None:
    converted = checkpoint.load(config.model)
    if history.keys() & {"width", "activation", "layers"}:  # a record that is not of this model
        source = {**converted.provenance["convert"]["source_config"], **history}
        history = {"convert": {"source_config": source}}
    with pytest.raises(
        UserError, match="expected a model fresh from t2r convert.*give the teacher explicitly"
    ) as caught:
        original(dataclasses.replace(converted, provenance=history))
    assert received in caught.value.received


def test_default_stages_have_parameters_to_train(
    config: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = texts.write_student(tmp_path / "window.pt", mixer=WindowConfig(5, 1))
    usual = dataclasses.replace(config, plan=parse_plan(None, "2,3"))
    finetune(usual)
    assert "no transfer" not in capsys.readouterr().err
    stages = [stage["stage"] for stage in checkpoint.load(config.output).provenance["finetune"][0]["stages"]]
    assert stages == ["transfer", "distill"]
    finetune(dataclasses.replace(usual, model=window, force=True))
    assert "no transfer: the student has nothing that it trains\n" in capsys.readouterr().err
    (stage,) = checkpoint.load(config.output).provenance["finetune"][0]["stages"]
    assert (stage["stage"], stage["steps"]) == ("distill", 3)
    with pytest.raises(
        UserError, match="mixers without new parameters; convert the model first, or leave transfer out"
    ):
        finetune(dataclasses.replace(config, model=window, plan=parse_plan("transfer,distill", "2"), force=True))
    with pytest.raises(UserError, match="at least one step of one stage"):
        finetune(dataclasses.replace(config, model=window, plan=parse_plan(None, "2,0"), force=True))


def test_rows_determine_length(config: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "rows.npy", np.arange(40 * 9).reshape(40, 9) % texts.TEACHER.vocab_size)
    config = dataclasses.replace(config, data=(tmp_path / "rows.npy",), length=None, plan=parse_plan("distill", "1"))
    finetune(config)
    assert "windows of 8 tokens, the rows' length\n" in capsys.readouterr().err
    assert checkpoint.load(config.output).provenance["finetune"][0]["length"] == 8
