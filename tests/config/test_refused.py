"""Unsupported systems are refused by name wherever a kind is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_models import Output, letter_tokenizer, run
from small import model
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.plain import from_plain
from t2r_export.config.recipe import read_recipe
from t2r_export.config.refused import REFUSED, why_refused
from t2r_export.config.uniform import LAYERS, UniformConfig, mixer_from_dict
from t2r_runtime.errors import UserError

DOCS = (Path(__file__).parents[2] / "docs/mixers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REFUSED)
def test_docs_and_errors_give_the_reason(name: str) -> None:
    assert name not in LAYERS
    assert f"`{name}`" in DOCS.partition("## What is refused")[2]
    with pytest.raises(UserError) as caught:
        mixer_from_dict({"kind": name})
    assert f"'{name}'; {REFUSED[name]}; choose one of those" in str(caught.value)
    with pytest.raises(UserError) as caught:
        from_plain(MixerConfig, {"kind": name}, "mixer")
    assert REFUSED[name] in str(caught.value)


RECIPE = """
text = "t"
source = "s"
model = { vocab_size = 9, width = 4, layers = [{ kind = "lstm" }], position = "none" }

[[student]]
name = "one"
KEY
finetune = { stages = "distill" }
"""


@pytest.mark.parametrize(
    "key",
    [
        "convert = { kind = 'reformer' }",
        "model = { layers = [{ kind = 'reformer' }] }",
        "model = { reformer = true }",
        "convert = { kind = 'window', window = 3, reformer = true }",
    ],
)
def test_recipes_with_a_refused_name(key: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE.replace("KEY", key))
    with pytest.raises(UserError, match=f"; {REFUSED['reformer']}; .*; docs/finetuning.md has a recipe's keys"):
        read_recipe(tmp_path / "r.toml")


@pytest.mark.parametrize("key", ["act", "halting", "early_exit", "calm", "adaptive-depth"])
def test_a_key_of_a_config(key: str) -> None:
    data = {"vocab_size": 9, "width": 4, "layers": [{"kind": "lstm"}], "position": "none"}
    assert from_plain(UniformConfig, data, "model").width == 4
    with pytest.raises(UserError, match=f"unexpected .*{key}.*; no (halting|early exit): a graph computes every layer"):
        from_plain(UniformConfig, {**data, key: 3}, "model")


@pytest.mark.parametrize(
    "written, name",
    [
        ("Reformer", "reformer"),
        ("Nyströmformer", "nystromformer"),
        ("routing-transformer", "routing"),
        ("sinkhorn_attention", "sinkhorn"),
        ("Memorizing-Transformer", "memorizing"),
        ("PonderNet", "pondernet"),
        ("Depth-Adaptive-Transformer", "depth_adaptive"),
        ("adaptive_computation_time", "act"),
    ],
)
def test_other_spellings(written: str, name: str) -> None:
    assert why_refused(written) == REFUSED[name]


@pytest.mark.parametrize("name", ["window", "linear", "transformer", "", 3, None, []])
def test_other_names_are_not_in_the_table(name: object) -> None:
    assert why_refused(name) is None


def test_command(tmp_path: Path, capsys: Output) -> None:
    checkpoint.save(tmp_path / "model.pt", model("softmax"), letter_tokenizer(), {})
    _, said = run(capsys, "convert", tmp_path / "model.pt", tmp_path / "no.pt", "--mixer", "linformer:window=3", code=2)
    assert REFUSED["linformer"] in said
    assert not (tmp_path / "no.pt").exists()
