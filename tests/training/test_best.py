"""A stage ends with the weights of its best validation, also after a stop; the test part affects no choice."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from runs import changed, entry, records, stop_at
from t2r_export.config.finetune import SEPARATOR, FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_export.training.stages import Distill


def validations(config: FinetuneConfig, stage: str) -> dict[int, float]:
    """Nats per token on the validation windows, by step."""
    found = [line for line in records(config) if line.get("stage") == stage and "validation_nats" in line]
    return {line["step"]: line["validation_nats"] for line in found}


@pytest.mark.parametrize("lora", [False, True])
def test_stage_keeps_best_weights(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str], lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage diverges from its teacher."""
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
    assert re.search(rf"{line}.*; try a lower --lr than 0.3 for distill, such as 0.075, or a larger --batch", said)
    assert ("worse than before" in said) == (report.after.nats > report.before.nats)
    assert entry(config)["kept_steps"] == [task.step, 0]
    brief = parse_plan("task,distill", "20,1", "0.03,0.3")  # with a teacher too, from which new mixers start
    alone = dataclasses.replace(config, plan=brief, output=config.output.with_name("alone.pt"))
    assert finetune(alone).kept[1].step == 0
    assert changed(alone.output, config.output) == set()


@pytest.mark.parametrize("rate, rises", [("0.5", True), ("0.001", False)])
def test_stage_whose_loss_rises_continues_from_its_best_weights(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str], rate: str, rises: bool
) -> None:
    config = dataclasses.replace(config, plan=parse_plan("distill", "60", rate))
    report = finetune(config)
    found = re.findall(
        r"distill: the loss rose from [\d.]+ to [\d.]+ before step (\d+); the rest at ([\d.]+) times the learning rate"
        r"(?:, from the weights of step (\d+))?\n",
        capsys.readouterr().err,
    )
    assert bool(found) == rises
    assert [float(factor) for _, factor, _ in found] == [0.5**n for n in range(1, len(found) + 1)]
    if rises:
        assert found[0][0] in ("11", "21") and found[0][2] != ""
        (kept,) = report.kept
        assert kept.step > 0 and report.after.nats < report.before.nats


@pytest.mark.slow
def test_best_weights_survive_stop(config: FinetuneConfig, tmp_path: Path) -> None:
    """The best validation precedes or follows the stop; a stop at a validation still runs it."""
    config = dataclasses.replace(config, plan=parse_plan("task", "60", "0.8"), validate_every=4)
    whole = dataclasses.replace(config, output=tmp_path / "whole.pt")
    (kept,) = finetune(whole).kept
    assert 0 < kept.step < 60
    for stop in (kept.step - 1, kept.step + 1):
        stop_at(config, stop)
        assert finetune(dataclasses.replace(config, resume=True)).kept == (kept,)
        assert config.output.read_bytes() == whole.output.read_bytes()
        config.output.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("first, last, same", [(38, 40, True), (36, 38, False)])
def test_only_report_reads_test_part(config: FinetuneConfig, tmp_path: Path, first: int, last: int, same: bool) -> None:
    """Changing the last documents changes only the report; changing earlier ones changes the validation."""
    report = finetune(config)
    documents = config.data[0].read_text().split(f"\n{SEPARATOR}\n")
    other = dataclasses.replace(config, data=(tmp_path / "other",), output=tmp_path / "other.pt")
    documents[first:last] = [text.translate(str.maketrans("abcdef", "bcdefa")) for text in documents[first:last]]
    other.data[0].write_text(f"\n{SEPARATOR}\n".join(documents))
    found = finetune(other)
    assert (validations(config, "distill") == validations(other, "distill")) == same
    assert (found.before.nats != report.before.nats) == same
    if same:
        assert changed(config.output, other.output) == set()
