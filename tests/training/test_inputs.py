"""Teachers rebuilt from conversions, defaults that depend on models and data, and mismatched inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
import texts
from runs import entry
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert, provenance
from t2r_export.finetune import finetune
from t2r_export.training.inputs import original
from t2r_runtime.errors import UserError


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
    for layers in ("2", "0"):  # two conversions: the source is that of the first
        model = convert(source.model, LinearConfig(small.K), layers)
        source = dataclasses.replace(source, config=model.config, model=model, provenance=provenance(source))
    teacher = original(source)
    assert teacher.config == config.build()
    assert torch.equal(teacher(ids := torch.arange(9)[None] % 7), small.model(config)(ids))
    assert not {p.data_ptr() for p in teacher.parameters()} & {p.data_ptr() for p in source.model.parameters()}


def test_teacher_trained_before_the_conversion_is_rebuilt() -> None:
    """A teacher that t2r trained has runs in its provenance, which its students inherit."""
    teacher = dataclasses.replace(small.checkpoint(texts.TEACHER), provenance={"finetune": [{}]})
    model = convert(teacher.model, LinearConfig(small.K))
    student = dataclasses.replace(teacher, config=model.config, model=model, provenance=provenance(teacher))
    assert original(student).config == teacher.config
    again = dataclasses.replace(student, provenance=provenance(student, layers="none"))
    assert original(again).config == teacher.config
    trained = dataclasses.replace(student, provenance={**student.provenance, "finetune": [{}, {}]})
    with pytest.raises(UserError, match="received a model trained since its conversion"):
        original(dataclasses.replace(trained, provenance=provenance(trained)))


@pytest.mark.parametrize("teacher", [None, "teacher.pt", "copy.pt"])
def test_model_that_was_not_converted_is_refused(config: FinetuneConfig, tmp_path: Path, teacher: str | None) -> None:
    """With itself as the teacher, in the same or another file, its loss would be 0."""
    plain = texts.write_teacher(tmp_path / "teacher.pt")
    loaded = checkpoint.load(plain)
    checkpoint.save(tmp_path / "copy.pt", loaded.model, loaded.tokenizer, {"origin": "a copy"})
    asked = dataclasses.replace(config, model=plain, teacher=teacher and tmp_path / teacher)
    with pytest.raises(UserError, match="convert it first, t2r convert MODEL STUDENT.pt, and train STUDENT.pt"):
        finetune(asked)
    assert not asked.output.exists() and not asked.state_path.exists()
    finetune(dataclasses.replace(asked, plan=parse_plan("task", "1")))


def layers(change: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """The teacher's layers as plain data, after `change` of each layer's parts."""
    plain: list[dict[str, Any]] = to_plain(texts.TEACHER.build())["layers"]
    for layer in plain:
        change(layer["parts"])
    return plain


@pytest.mark.parametrize(
    "history, received",
    [
        ({"finetune": [{}], "convert": {}}, "a model trained since its conversion"),
        ({"finetune": [{}, {}], "convert": {"source_runs": 1}}, "a model trained since its conversion"),
        ({"finetune": 3, "convert": {}}, "a model without its source in the provenance"),
        ({"convert": {"source_runs": "1"}}, "a model without its source in the provenance"),
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
    if history.keys() & {"width", "activation", "layers"}:  # a record of another model
        source = {**converted.provenance["convert"]["source_config"], **history}
        history = {"convert": {"source_config": source}}
    with pytest.raises(
        UserError, match="expected a model fresh from t2r convert.*name the teacher, --teacher TEACHER.pt"
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
    assert [stage["stage"] for stage in entry(config)["stages"]] == ["transfer", "distill"]
    finetune(dataclasses.replace(usual, model=window, force=True))
    assert "no transfer: the student has nothing that it trains\n" in capsys.readouterr().err
    (stage,) = entry(config)["stages"]
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
    assert entry(config)["length"] == 8
