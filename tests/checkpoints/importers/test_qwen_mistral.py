"""Qwen2, Qwen3 and Mistral folders: the arithmetic of transformers, through the graph, and as students."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import folders
import small
from checkpoints.importers.peers import TOLERANCE, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_runtime.errors import UserError

LENGTH = 47
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2 one kv head, tied": ("Qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2 windows": ("Qwen2", WINDOWS),
    "qwen3": ("Qwen3", {"head_dim": 10}),
    "qwen3 biases": ("Qwen3", {"head_dim": 4, "attention_bias": True}),
    "qwen3 windows": ("Qwen3", {"head_dim": 6, **WINDOWS}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral longer than a chunk": ("Mistral", {"sliding_window": 40}),
    "mistral without a window": ("Mistral", {"sliding_window": None, "head_dim": 10}),
}


def reference(name: str) -> Any:
    """A model of transformers with weights large enough that each of them matters."""
    import transformers

    family, changes = CASES[name]
    sizes = {
        "vocab_size": 31,
        "hidden_size": 24,
        "intermediate_size": 11,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "max_position_embeddings": 60,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(sizes | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=0.3)
    return model


@pytest.mark.parametrize("name", CASES)
def test_random_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    theirs = reference(name)
    theirs.save_pretrained(tmp_path)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_the_graph_is_the_model(name: str, tmp_path: Path) -> None:
    reference(name).save_pretrained(tmp_path / "folder")
    loaded = checkpoint.load(tmp_path / "folder")
    export(loaded, tmp_path / "g.onnx", ExportConfig(prefill=True))
    assert small.proof(loaded, tmp_path / "g.onnx", steps=60).passed


@pytest.mark.parametrize("name", CASES)
def test_every_layer_can_become_linear(name: str, tmp_path: Path) -> None:
    reference(name).save_pretrained(tmp_path)
    source = checkpoint.load(tmp_path)
    student = convert(source.model, LinearConfig(5, positions="drop"))
    report = fold(student)[1]
    if source.config.heads[0].qk_norm:
        assert {layer.reason for layer in report} == {"q and k are normalized between the projection and φ (qk_norm)"}
    else:
        assert all(layer.folded for layer in report)


def test_layers_with_a_window_have_one(tmp_path: Path) -> None:
    for name, kinds in (("qwen2", "sss"), ("qwen2 windows", "sww"), ("mistral", "www")):
        reference(name).save_pretrained(tmp_path / name)
        config = checkpoint.load(tmp_path / name).config
        window = WindowConfig(5 if "qwen" in name else 7, sinks=0)
        assert small.mixers(config) == [SoftmaxConfig() if kind == "s" else window for kind in kinds]


@pytest.mark.parametrize("name", ["qwen2 windows", "mistral"])
def test_a_window_may_be_absent_from_older_files(name: str, tmp_path: Path) -> None:
    """Without layer_types, the other keys give the same config."""
    reference(name).save_pretrained(tmp_path)
    whole = checkpoint.load(tmp_path).config
    folders.change_config(tmp_path, layer_types=None)
    assert checkpoint.load(tmp_path).config == whole


@pytest.mark.parametrize(
    "name, changes",
    [
        ("mistral", {"sliding_window": 6}),
        ("qwen2 windows", {"sliding_window": 4}),
        ("qwen3", {"rms_norm_eps": 1e-2}),
    ],
)
def test_the_comparison_with_transformers_sees_a_wrong_config(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    theirs = reference(name)
    theirs.save_pretrained(tmp_path)
    folders.change_config(tmp_path, **changes)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) > 1e-4


@pytest.mark.parametrize("types", [["full_attention"], ["chunked_attention"] * 3, "full_attention"])
def test_layer_types_that_are_not_known_are_refused(types: Any, tmp_path: Path) -> None:
    reference("qwen2").save_pretrained(tmp_path)
    folders.change_config(tmp_path, layer_types=types)
    with pytest.raises(UserError, match="expected layer_types in .* to be 3 names, each one of full_attention"):
        checkpoint.load(tmp_path)
