"""A run's predicted needs equal its measured ones."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import small
import texts
from cli_models import run
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert, provenance
from t2r_export.finetune import plan
from t2r_export.training import losses

# Prints the memory of a run beyond that of a tiny model's run; also with a bfloat16 teacher.
PROGRAM = """
import sys
from pathlib import Path
import torch
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_export.training.measured import peak_bytes

torch.set_num_threads(1)
*models, output, text, precision, recompute = sys.argv[1:]
options = {"data": (Path(text),), "length": 128, "batch": 8, "precision": precision, "device": "cpu", "force": True}
options["recompute"] = recompute == "True"
for model in models:
    before = peak_bytes(torch.device("cpu"))
    finetune(FinetuneConfig(model=Path(model), output=Path(output), plan=parse_plan("distill", "2", "1e-3"), **options))
print(peak_bytes(torch.device("cpu")) - before)
"""
LARGE = dataclasses.replace(
    texts.TEACHER.with_attention(head_size=32), width=192, ffn_size=512, vocab_size=4096, layers=(small.SOFTMAX,) * 4
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "precision, recompute, share", [("float32", False, 0.25), ("bf16", False, 0.4), ("float32", True, 0.25)]
)
def test_memory_is_what_is_used(precision: str, recompute: bool, share: float, tmp_path: Path) -> None:
    teacher = small.checkpoint(LARGE)
    student = convert(teacher.model, texts.STUDENT)
    checkpoint.save(tmp_path / "model.pt", student, texts.tokenizer(), provenance(teacher))
    texts.write_text(tmp_path / "text", 400)
    model, output, text = (tmp_path / name for name in ("model.pt", "out.pt", "text"))
    tiny = texts.write_student(tmp_path / "tiny.pt")
    command = [sys.executable, "-c", PROGRAM, *map(str, (tiny, model, output, text, precision, recompute))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    options: dict[str, Any] = {"data": (text,), "length": 128, "batch": 8, "precision": precision, "device": "cpu"}
    options["recompute"] = recompute
    (stage,) = plan(FinetuneConfig(model=model, output=output, plan=parse_plan("distill", "2"), force=True, **options))
    assert stage.bytes == pytest.approx(int(done.stdout.splitlines()[-1]), rel=share)


@pytest.fixture
def config(tmp_path: Path) -> FinetuneConfig:
    return texts.run(tmp_path, parse_plan("transfer,distill,task", "7,6,5", "1e-3"))


def test_counts_of_each_stage(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    transfer, distill, task = plan(config)
    student = sum(p.numel() for p in checkpoint.load(config.model).model.parameters())
    assert (transfer.steps, transfer.tokens) == (7, 7 * 4 * 16)
    assert 0 < transfer.trained < distill.trained == task.trained == student
    assert transfer.memory["gradients"] == 4 * transfer.trained
    assert transfer.memory["optimizer"] == pytest.approx(8 * transfer.trained, abs=8 * 50)  # plus a step per tensor
    assert distill.hours(2.0) == distill.flops / 2e12 / 3600
    # linear in rows: the needs of one and two rows give those of four
    monkeypatch.setattr(losses, "LEAST_ROWS", 16)
    monkeypatch.setattr(losses, "LOGITS", 1)
    fewer = plan(config)[1]
    assert fewer.flops == pytest.approx(distill.flops, rel=0.02)
    assert fewer.bytes == pytest.approx(distill.bytes, rel=0.1)


def test_adapters_and_accumulation_need_less(config: FinetuneConfig) -> None:
    whole = plan(config)[1]
    options: tuple[dict[str, Any], ...] = ({"lora": True}, {"accumulate": 4}, {"recompute": True})
    adapters, parts, anew = (plan(dataclasses.replace(config, **given))[1] for given in options)
    assert adapters.trained < whole.trained
    assert adapters.memory["gradients"] + adapters.memory["optimizer"] < 12 * adapters.trained + 1000
    assert parts.memory["activations"] < 0.5 * whole.memory["activations"]
    assert parts.flops == pytest.approx(whole.flops, rel=0.05)
    assert anew.memory["activations"] < 0.7 * whole.memory["activations"]
    assert 1.15 * whole.flops < anew.flops < 1.3 * whole.flops  # a third forward pass, added to about five passes' work


def test_a_plan_is_printed_and_writes_nothing(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["finetune", config.model, config.output, "--data", config.data[0], "--steps", "3", "--length", "16"]
    stages = json.loads(run(capsys, *given, "--plan", "0.5", "--json")[0])["stages"]
    assert [stage["stage"] for stage in stages] == ["transfer", "distill"]
    assert stages[1]["bytes"] == sum(stages[1]["memory"].values())
    assert "transfer  3 " in run(capsys, *given, "--plan", "0.5")[0]
    assert not list(config.output.parent.glob("tuned*"))
