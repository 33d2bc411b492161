"""Checkpoints of older versions: configs and weight names are upgraded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.config.model import ModelConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.upgrade import VERSION, upgrade, upgrade_weights
from t2r_runtime.errors import UserError

NEWER = {"alibi", "alibi_kinds", "retention", "yarn", "yarn_span", "ntk"}  # models that version 3 cannot represent
OLD = Path(__file__).parents[2] / "models"  # files of version 1


def of_version_3(data: Any) -> Any:
    """Current plain data with the positions of attention and of the model as in version 3."""
    if isinstance(data, list):
        return [of_version_3(one) for one in data]
    if not isinstance(data, dict):
        return data
    old = {key: of_version_3(value) for key, value in data.items() if key != "positions" or isinstance(value, str)}
    if "kv_heads" in data:
        old["rotary"] = data["positions"] and {**ROTARY, **data["positions"], **scaled(data["positions"]["scaling"])}
        if old["rotary"]:
            del old["rotary"]["kind"]
    elif "positions" in data and "embedding_scale" in data:
        kind = data["positions"] or {"kind": "none"}
        old |= {"position": kind["kind"], "max_positions": kind.get("max_positions")}
    return old


ROTARY = {"factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_positions": 8192}


def scaled(scaling: dict[str, Any] | None) -> dict[str, Any]:
    return {**scaling, "scaling": scaling["kind"]} if scaling else {"scaling": "none"}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(small.MODELS.keys() - NEWER))
def test_a_config_of_an_older_version_is_todays(name: str, version: int) -> None:
    uniform = small.MODELS[name]
    today = json.loads(json.dumps(to_plain(uniform if version == 1 else uniform.build())))
    old = of_version_3(today)
    assert ("rotary" in json.dumps(old)) == ("kv_heads" in json.dumps(old))
    assert ModelConfig.from_dict(upgrade(old, version)[0]) == uniform.build()


# of a model with one norm before each part, one after each sum, and norms on both sides of a part
NAMES = {
    "pre": {"norms.0.weight": "norms.0.weight", "ffn_norm.bias": "norms.1.bias"},
    "post": {"norms.0.weight": "norms_sum.0.weight", "ffn_norm.bias": "norms_sum.1.bias"},
    "both": {"norms_after.0.weight": "norms_after.0.weight", "ffn_norm_after.bias": "norms_after.1.bias"},
}


@pytest.mark.parametrize("position", NAMES)
def test_weights_of_version_1_are_renamed(position: str) -> None:
    old = {**to_plain(small.GPT2), "norm_position": position}
    _, renamed = upgrade(old, 1)
    parts = {"mixers.0.q.weight": "parts.0.q.weight", "ffn.up.weight": "parts.1.up.weight"}
    for before, after in {**NAMES[position], **parts}.items():
        assert renamed(f"blocks.1.{before}") == f"blocks.1.{after}"
    assert renamed("embedding.weight") == "embedding.weight"


def test_upgrade_translator_feed_forward_index() -> None:
    _, renamed = upgrade(to_plain(small.TRANSLATORS["softmax"]), 1)
    assert renamed("blocks.0.mixers.1.k.weight") == "blocks.0.parts.1.k.weight"
    assert renamed("blocks.0.ffn.down.bias") == "blocks.0.parts.2.down.bias"
    assert renamed("encoder.blocks.0.ffn.down.bias") == "encoder.blocks.0.parts.1.down.bias"
    _, renamed = upgrade(to_plain(small.TRANSLATORS["merged"]), 1)
    assert renamed("blocks.0.ffn.down.bias") == "blocks.0.parts.1.down.bias"


@pytest.mark.parametrize("name", ["storyteller", "stories3M"])
def test_a_file_of_version_1_is_saved_as_todays(name: str, tmp_path: Path) -> None:
    path = OLD / name / "model.pt"
    assert torch.load(path, weights_only=True)["version"] == 1
    loaded = checkpoint.load(path)
    checkpoint.save(tmp_path / "model.pt", loaded.model, loaded.tokenizer, loaded.provenance, loaded.source_tokenizer)
    again = checkpoint.load(tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt", weights_only=True)["version"] == VERSION
    assert (again.config, again.provenance) == (loaded.config, loaded.provenance)
    for weight, other in zip(loaded.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(weight, other)
    source = again.provenance["convert"].get("source_config")  # the oldest files have none
    assert source is None or ModelConfig.from_dict(source).vocab_size == again.config.vocab_size


def test_experts_of_no_config_stay_as_they_are() -> None:
    sizes = {"b.up": (2, 20), "b.down": (2, 8), "b.router.weight": (2, 4)}  # 20 is no multiple of 2 · 4
    weights = {name: torch.zeros(size) for name, size in sizes.items()}
    assert {name: weight.shape for name, weight in upgrade_weights(weights, 4).items()} == sizes


def test_version_2_had_parallel_layers() -> None:
    config = dataclasses.replace(small.TRANSLATORS["softmax"], parallel=True).build()
    data = json.loads(json.dumps(config.to_dict()))
    for layer in (*data["layers"], *data["encoder"]["layers"]):
        layer["parallel"] = True
        for part in layer["parts"]:
            del part["beside"]
    assert ModelConfig.from_dict(upgrade(data, 2)[0]) == config


def test_a_version_that_is_not_known_is_refused(tmp_path: Path) -> None:
    data = torch.load(OLD / "storyteller" / "model.pt", weights_only=True)
    torch.save({**data, "version": VERSION + 1}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=f"version 1 to {VERSION} of"):
        checkpoint.load(tmp_path / "model.pt")
