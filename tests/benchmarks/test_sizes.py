"""Models of known sizes, and no speed for a graph that is not the model."""

from pathlib import Path

import pytest

import small
from comparison import sizes
from comparison.engines import as_checkpoint, require_parity
from t2r_export.config.model import ModelConfig
from t2r_export.errors import CheckFailed
from t2r_runtime.errors import UserError


def test_no_speed_for_a_graph_that_is_another_model(tmp_path: Path) -> None:
    right, _ = small.graph(tmp_path / "graph.onnx")
    require_parity(right, tmp_path / "graph.onnx")
    with pytest.raises(CheckFailed, match=r"no speed for graph.onnx, which is not the model: .*logits"):
        require_parity(small.checkpoint(seed=1), tmp_path / "graph.onnx")


def test_an_unknown_size_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="gpt2-small, smollm-135m; received 'gpt5'"):
        sizes.random_model("gpt5")


def test_a_mixer_goes_into_every_layer(tiny: ModelConfig) -> None:
    model = sizes.softmax_model("tiny")
    assert [layer.kind for layer in model.config.layers] == ["softmax"] * len(tiny.layers)
    assert not model.training


def test_models_of_other_names_are_other_checkpoints(tiny: ModelConfig) -> None:
    model = sizes.random_model("tiny")
    assert as_checkpoint(model, "a").sha256 != as_checkpoint(model, "b").sha256
