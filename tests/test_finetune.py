"""Finetuning end to end: trained weights, losses, written files."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

import runs
import small
import texts
from runs import changed, entry, records, resumed, stop_at
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import SEPARATOR, FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import _report, finetune
from t2r_export.finetune import plan as planned
from t2r_runtime.errors import UserError


@pytest.fixture
def config(tmp_path: Path) -> FinetuneConfig:
    return runs.usual(tmp_path)


def test_all_stages_reduce_loss(config: FinetuneConfig) -> None:
    plan = parse_plan("transfer,align,distill", "40,40,80", "0.01,0.01,0.01")
    config = dataclasses.replace(config, plan=plan)
    report = finetune(config)
    lines = records(config)
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
    finetune(dataclasses.replace(config, plan=parse_plan("distill", "3", "2e-2")))
    assert changed(config.model, config.output) == set(checkpoint.load(config.model).model.state_dict())


def test_complete_run_is_reported(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """`--resume` over a run's own result trains nothing; over another run's it is refused."""
    report = finetune(config)
    before = config.output.read_bytes()
    capsys.readouterr()
    again = finetune(dataclasses.replace(config, resume=True))
    assert capsys.readouterr().err == f"this run is complete: {config.output}\n"
    assert dataclasses.replace(again, kept=report.kept, seconds=report.seconds) == report
    with pytest.raises(UserError, match="expected seed 0, as in the run saved in .*tuned.pt; received seed 7; "):
        finetune(dataclasses.replace(config, resume=True, seed=7))
    with pytest.raises(UserError, match="received a trained model; name another file, or pass --force"):
        finetune(config)
    assert config.output.read_bytes() == before
    checkpoint.save(config.output, checkpoint.load(config.model).model, texts.tokenizer(), {"finetune": ["odd"]})
    with pytest.raises(UserError, match="received a trained model; name another file, or pass --force"):
        finetune(dataclasses.replace(config, resume=True))


def test_resume_replaces_no_foreign_model(config: FinetuneConfig) -> None:
    """An import, or a pruned model, has no finetuning in its provenance."""
    model = checkpoint.load(config.model)
    checkpoint.save(config.output, model.model, model.tokenizer, {"origin": "import"})
    before = config.output.read_bytes()
    with pytest.raises(UserError, match="expected no trained model and no other file at .*tuned.pt"):
        finetune(dataclasses.replace(config, resume=True))
    assert config.output.read_bytes() == before
    finetune(dataclasses.replace(config, resume=True, force=True))
    assert entry(config)["seed"] == config.seed


def test_resume_without_a_run_says_so(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    finetune(dataclasses.replace(config, resume=True))
    assert f"note: nothing to resume at {config.output}: training begins\n" in capsys.readouterr().err


@pytest.mark.slow
def test_forced_resume_of_a_complete_run_trains_nothing(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune(config)
    before = config.output.read_bytes()
    capsys.readouterr()
    finetune(dataclasses.replace(config, resume=True, force=True))
    assert capsys.readouterr().err == f"this run is complete: {config.output}\n"
    finetune(dataclasses.replace(config, resume=True, force=True, seed=7))
    assert config.output.read_bytes() != before


def test_kill_between_result_and_removal_of_the_state(config: FinetuneConfig) -> None:
    stop_at(config, 9)
    state = config.state_path.read_bytes()
    done = resumed(config)
    config.state_path.write_bytes(state)
    assert resumed(config) == done
    assert not config.state_path.exists()
    config.state_path.write_bytes(state)
    with pytest.raises(UserError, match="received a trained model; name another file, or pass --force"):
        finetune(dataclasses.replace(config, resume=True, seed=7))


@pytest.mark.slow
def test_report_of_a_student_that_was_not_finite(config: FinetuneConfig) -> None:
    """Its figure before training is not in the provenance, as that of no number."""
    finetune(config)
    done = dict(checkpoint.load(config.output).provenance["finetune"][-1])
    evaluation = {name: value for name, value in done["evaluation"].items() if not name.startswith("student")}
    report = _report(config.output, {**done, "evaluation": evaluation}, [], 0.0)
    assert math.isnan(report.before.nats) and math.isfinite(report.after.nats)


def test_plan_ignores_the_output(config: FinetuneConfig) -> None:
    config.output.write_bytes(b"another file")
    assert [stage.stage for stage in planned(config)] == ["transfer", "distill", "task"]
    assert config.output.read_bytes() == b"another file"


def test_output_in_a_data_folder_is_refused(config: FinetuneConfig, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(config.data[0].read_bytes())
    inside = dataclasses.replace(config, data=(folder,), output=folder / "m.pt")
    with pytest.raises(UserError, match="expected an output outside of input folders; received .*m.pt in "):
        finetune(inside)
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "stages, options, message",
    [
        ("task,transfer", {}, "a teacher with the student's layers and width for the transfer stage"),
        ("task,distill", {}, "a teacher with the student's layers and width for comparing hidden states"),
        ("task,distill", {"hidden": 0.0, "lora": True, "lora_rank": 1000}, "a rank of the adapters of at most 10"),
    ],
)
def test_later_stages_are_checked_before_the_first_step(
    stages: str, options: dict[str, Any], message: str, config: FinetuneConfig, tmp_path: Path
) -> None:
    teacher = tmp_path / "teacher.pt"
    texts.write_teacher(teacher, dataclasses.replace(texts.TEACHER, layers=(small.SOFTMAX,)))
    config = dataclasses.replace(config, teacher=teacher, plan=parse_plan(stages, "3,2", "1e-3"), **options)
    with pytest.raises(UserError, match=message):
        finetune(config)
    assert not config.state_path.exists()


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_batch(config: FinetuneConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(config, plan=parse_plan("transfer,distill,task", "7,6,5", "1e-3"))
    alone = dataclasses.replace(config, output=tmp_path / "alone.pt")
    parts = dataclasses.replace(config, output=tmp_path / "parts.pt", accumulate=3)  # 4 rows: 2 and 2
    for each in (alone, parts):
        finetune(each)
    losses = [[line["loss"] for line in records(each) if "loss" in line] for each in (alone, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    again = dataclasses.replace(parts, output=config.output)
    stop_at(again, 9)
    with pytest.raises(UserError, match="expected accumulate 3, as in the run saved"):
        finetune(dataclasses.replace(config, resume=True))
    assert resumed(again) == parts.output.read_bytes()


@pytest.mark.slow
def test_output_has_provenance_and_is_reproducible(config: FinetuneConfig, tmp_path: Path) -> None:
    report = finetune(config)
    found = checkpoint.load(config.output)
    assert found.provenance["convert"]["layers"] == "all"
    assert found.provenance["finetune"] == [said := entry(config)]
    assert [stage["steps"] for stage in said["stages"]] == [7, 6, 5]
    assert said["tokens"] == 18 * 4 * 16
    assert said["files"] == ["text"]
    assert said["model"] == checkpoint.load(config.model).sha256
    assert report.teacher is not None
    assert said["evaluation"]["teacher"] == report.teacher.nats
    assert said["evaluation"]["finetuned"] == report.after.nats
    again = dataclasses.replace(config, output=tmp_path / "again.pt", checkpoint_every=100)
    finetune(again)
    assert again.output.read_bytes() == config.output.read_bytes()
    assert finetune(dataclasses.replace(again, seed=1, force=True)).after.nats != report.after.nats


@pytest.mark.slow
def test_hybrid_with_explicit_teacher(config: FinetuneConfig, tmp_path: Path) -> None:
    student, teacher = texts.write_student(tmp_path / "hybrid.pt", "0,2"), texts.write_teacher(tmp_path / "teacher.pt")
    implicit = dataclasses.replace(config, model=student)
    explicit = dataclasses.replace(implicit, teacher=teacher, output=tmp_path / "explicit.pt")
    nats = [finetune(c).after.nats for c in (implicit, explicit)]
    assert nats[0] == nats[1]
    twice = dataclasses.replace(explicit, model=explicit.output, output=tmp_path / "twice.pt")
    finetune(twice)
    assert len(checkpoint.load(twice.output).provenance["finetune"]) == 2


def test_worse_student_is_reported(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """The test part has other letters than the training and validation parts."""
    config.data[0].write_text(f"\n{SEPARATOR}\n".join(["ab ab ab ab ab ab."] * 38 + ["gh hg gh hg gh hg."] * 2))
    report = finetune(dataclasses.replace(config, plan=parse_plan("task", "30", "0.02")))
    difference = report.after.nats - report.before.nats
    assert difference > 0.5
    assert f"the student is worse than before: {difference:+.4f} nats/token\n" in capsys.readouterr().err


@pytest.mark.slow
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
