"""The Python API writes the same files and raises the same errors as the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
import t2r_export
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.files import sha256
from t2r_runtime import Decoder, UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a softmax model and a byte tokenizer."""
    made = small.checkpoint("softmax")
    checkpoint.save(tmp_path / "source.pt", made.model, None, {"origin": "a test"})
    return tmp_path


def test_pipeline(folder: Path) -> None:
    source = t2r_export.load(folder / "source.pt")
    student = source.convert(feature_size=5)
    assert {mixer.kind for mixer in small.mixers(source.config)} == {"softmax"}
    assert {mixer.kind for mixer in small.mixers(student.config)} == {"linear"}
    ids = small.ids(1, 400).numpy()[0]
    np.save(folder / "ids.npy", ids)
    tuned = student.finetune(folder / "tuned.pt", folder / "ids.npy", steps="2,2", length=16, batch=2)
    assert tuned.checkpoint.provenance["origin"] == "a test"
    assert tuned.checkpoint.sha256 == sha256(folder / "tuned.pt")
    report = tuned.export(folder / "out.onnx", prefill=True)
    assert report.signature.checkpoint_sha256 == tuned.checkpoint.sha256
    assert tuned.verify(folder / "out.onnx", steps=20).passed
    assert not student.verify(folder / "out.onnx", steps=20).passed
    assert tuned.verify(folder / "out.onnx", steps=20, reference="float64").reference == "float64"
    Decoder(folder / "out.onnx").step(1)


def test_convert_has_defaults_of_command_line(folder: Path) -> None:
    assert main(["convert", str(folder / "source.pt"), str(folder / "student.pt")]) == 0
    expected = t2r_export.load(folder / "student.pt")
    made = t2r_export.load(folder / "source.pt").convert()
    assert made.config == expected.config
    assert small.mixers(made.config)[0] == LinearConfig(32, update_rule="gated", gate="data")


def test_repr_is_short_summary(folder: Path) -> None:
    source = t2r_export.load(folder / "source.pt")
    lines = str(source.convert(feature_size=5, layers="0")).splitlines()
    assert lines[:1] == ["Model"] and len(lines) <= 12 and max(map(len, lines)) <= 160
    assert lines[1].startswith("  decoder of 2 layers, width 10, ")
    assert lines[2].startswith("  layers 0: linear, feature_size=5") and lines[3] == "  layers 1: softmax"
    assert lines[4:6] == ["  positions: learned", "  vocabulary: 17 tokens, no tokenizer"]
    many = tuple(WindowConfig(n) for n in range(1, 40))
    assert len(str(t2r_export.Model.new(small.with_layers(small.LLAMA, *many).build())).splitlines()) <= 12


def test_default_stages_depend_on_student(folder: Path) -> None:
    np.save(folder / "ids.npy", small.ids(1, 400).numpy()[0])
    student = t2r_export.load(folder / "source.pt").convert("window", window=4)
    tuned = student.finetune(folder / "tuned.pt", folder / "ids.npy", steps="2,3", length=16, batch=2)
    stages = tuned.checkpoint.provenance["finetune"][0]["stages"]
    assert [(stage["stage"], stage["steps"]) for stage in stages] == [("distill", 3)]


def test_digest_equals_saved_file(folder: Path) -> None:
    student = t2r_export.load(folder / "source.pt").convert(feature_size=5, layers="0")
    assert sha256(student.save(folder / "student.pt")) == student.checkpoint.sha256
    again = t2r_export.load(folder / "student.pt")
    assert again.checkpoint.sha256 == student.checkpoint.sha256
    assert again.checkpoint.provenance == student.checkpoint.provenance
    for name, weight in student.checkpoint.model.state_dict().items():
        assert torch.equal(again.checkpoint.model.state_dict()[name], weight)


def test_new_model(tmp_path: Path) -> None:
    config: ModelConfig = small.built("learned")
    first, same, other = (t2r_export.Model.new(config, seed=seed) for seed in (1, 1, 2))
    assert first.checkpoint.sha256 == same.checkpoint.sha256 != other.checkpoint.sha256
    first.export(tmp_path / "own.onnx")
    assert first.verify(tmp_path / "own.onnx", steps=10).passed


@pytest.mark.parametrize("how", ["w8", QuantizeConfig(scheme="w8", block_size=16)])
def test_quantized(how: str | QuantizeConfig, folder: Path) -> None:
    made = t2r_export.load(folder / "source.pt").export(folder / "q.onnx", quantize=how)
    assert made.signature.quantization == "w8"
    assert Decoder(folder / "q.onnx").signature.quantization == "w8"


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda model, at: t2r_export.load(at / "none.pt"), "none.pt; received nothing"),
        (lambda model, at: model.convert("quantum"), "quantum"),
        (lambda model, at: model.convert(window=3), "window"),
        (lambda model, at: model.convert("linaer"), "received 'linaer'; did you mean linear?"),
        (lambda model, at: model.convert(feature_sise=3), "received feature_sise; did you mean feature_size?"),
        (lambda model, at: model.export(at / "x.onnx", target="fussed"), "did you mean fused?"),
        (lambda model, at: model.export(at / "x.onnx", quantize="int9"), "did you mean int8?"),
        (lambda model, at: model.finetune(at / "t.pt", at / "none.txt", lenght=16), "did you mean length?"),
        (lambda model, at: model.export(at / "x.onnx", tarjet="fused"), "received tarjet; did you mean target?"),
        (lambda model, at: model.export(at / "x.onnx", target="abacus"), "received 'abacus'; choose one of those"),
        (lambda model, at: model.export(at / "x.onnx", check=at / "text"), "expected check beside quantize"),
        (lambda model, at: model.export(at / "x.onnx", check="text"), "expected check beside quantize"),
        (lambda model, at: model.export(at / "x.onnx", "w8", check=str(at / "none.txt")), "a graph with a tokenizer"),
        (lambda model, at: model.finetune(at / "t.pt", at / "none.txt", length=16), "none.txt"),
        (lambda model, at: model.finetune(at / "t.pt", at / "none.txt", epochs=3), "received epochs"),
    ],
)
def test_errors_match_command_line(call: object, message: str, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        call(t2r_export.load(folder / "source.pt"), folder)  # type: ignore[operator]
    assert message in str(caught.value)
    assert {file.name for file in folder.iterdir()} == {"source.pt"}


def test_package_import_loads_nothing_heavy() -> None:
    code = "import sys, t2r_export; assert 'torch' not in sys.modules; t2r_export.load; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'loaf'"):
        t2r_export.loaf  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("save", {"path": 7}, "path of type str | Path; received 7 of type int; correct path"),
        ("export", {"path": "o.onnx", "quantize": {}}, "quantize of type str | QuantizeConfig | None; received {} of"),
        ("export", {"path": "o.onnx", "batch": np.float32(1)}, "batch to be an integer; received np.float32(1.0)"),
        ("export", {"path": "o.onnx", "target": ["npu"]}, "target of type str; received ['npu'] of type list"),
        ("verify", {"graph": "o.onnx", "steps": {}}, "steps to be an integer; received {}; correct"),
        ("verify", {"graph": "o.onnx", "reference": np.zeros(2)}, "reference of type str; received array([0., 0.])"),
        ("finetune", {"output": "o.pt", "data": "t", "learning_rates": 2}, "learning_rates of type str | None"),
        ("finetune", {"output": "o.pt", "data": np.array("x")}, "data of type Files; received array('x', dtype='<U1')"),
        ("finetune", {"output": "o.pt", "data": "t", "lora": "yes"}, "lora to be true or false; received 'yes'"),
        (
            "convert",
            {"feature_size": 3, "guard": np.zeros(2)},
            "mixer (linear).guard to be a JSON object; received ndarray",
        ),
        ("convert", {"layers": None}, "layers of type str; received None of type NoneType"),
    ],
)
def test_wrong_argument_types_are_refused(name: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = t2r_export.Model(small.checkpoint("rotary_keep"))
    with pytest.raises(UserError) as caught:
        getattr(model, name)(**options)
    assert str(caught.value).startswith(f"expected {message}")
