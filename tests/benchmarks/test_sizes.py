"""Models of known sizes, and parity before speed."""

import dataclasses
from pathlib import Path

import pytest

import small
from comparison import sizes
from comparison.engines import as_checkpoint, parse, require_parity, student_model
from comparison.plan import read_plan
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.errors import CheckFailed
from t2r_export.model.initialize import initialize
from t2r_runtime.errors import UserError

PLAN = Path(__file__).parents[2] / "benchmarks" / "plan.toml"


def test_no_speed_for_other_model(tmp_path: Path) -> None:
    right, _ = small.graph(tmp_path / "graph.onnx")
    require_parity(right, tmp_path / "graph.onnx")
    with pytest.raises(CheckFailed, match=r"no speed for graph.onnx, which is not the model: .*logits"):
        require_parity(small.checkpoint(seed=1), tmp_path / "graph.onnx")


def test_unknown_size_is_refused() -> None:
    with pytest.raises(UserError, match="gpt2-small, smollm-135m; received 'gpt5'"):
        sizes.random_model("gpt5")


def test_mixer_in_every_layer(tiny: ModelConfig) -> None:
    model = sizes.softmax_model("tiny")
    assert [mixer.kind for mixer in small.mixers(model.config)] == ["softmax"] * len(tiny.layers)
    assert not model.training


@pytest.mark.parametrize("size", sizes.SIZES)
def test_student_uses_convert_defaults(size: str, tmp_path: Path) -> None:
    """Converts a small teacher with the size's position encoding by the command line."""
    known = sizes.SIZES[size]
    small_teacher = dataclasses.replace(
        known.with_attention(heads=3, kv_heads=3, head_size=4),
        vocab_size=7,
        width=12,
        ffn_size=5,
        layers=known.layers[:2],
    )
    checkpoint.save(tmp_path / "teacher.pt", initialize(small_teacher.build(), 0), None, {"origin": "a test"})
    assert main(["convert", str(tmp_path / "teacher.pt"), str(tmp_path / "student.pt")]) == 0
    assert set(small.mixers(checkpoint.load(tmp_path / "student.pt").config)) == {sizes.student(size)}


@pytest.mark.parametrize("form", ["default", "own_matched", "fast"])
def test_plan_measures_convert_defaults(form: str, tiny: ModelConfig) -> None:
    forms, _ = read_plan(PLAN)
    made = student_model(parse(forms[form]), "tiny")
    assert small.mixers(made.config) == [LinearConfig(32, update_rule="gated", gate="pair", positions="after")] * 3
    one_gate = student_model(parse(forms["one_gate"]), "tiny").config
    assert {mixer.gate for mixer in small.mixers(one_gate)} == {"data"}
    plain = student_model(parse(forms["plain"]), "tiny").config
    assert small.mixers(plain) == [LinearConfig(32, positions="drop")] * 3


def test_checkpoint_digest_depends_on_name(tiny: ModelConfig) -> None:
    model = sizes.random_model("tiny")
    assert as_checkpoint(model, "a").sha256 != as_checkpoint(model, "b").sha256
