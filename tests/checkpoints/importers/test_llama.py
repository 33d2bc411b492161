"""Llama folders: the text of a trained model, the arithmetic of transformers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import folders
from checkpoints.importers.peers import TOLERANCE, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import Llama3Scaling
from t2r_runtime.errors import UserError

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 5.0,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 10,
}
LINEAR = {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0}


@torch.no_grad()
def test_the_trained_model_writes_the_200_expected_tokens(data: Path) -> None:
    folder = data / "checkpoints/stories260K"
    expected = json.loads((folder / "expected_greedy_ids.json").read_text())["greedy_ids"]
    found = checkpoint.load(folder)
    assert found.config.bos_token == 1
    assert found.config.eos_tokens == (2,)
    ids, states = torch.tensor([found.config.bos_token]), found.model.init_state(1)
    written = ids.tolist()
    while len(written) < len(expected):
        logits, states = found.model.step(ids, states)
        ids = logits.argmax(-1)
        written.append(int(ids))
    assert len(expected) == 200
    assert written == expected


LENGTH = 47


def rotary_of(config: ModelConfig) -> RotaryConfig | None:
    return config.heads[0].rotary


CONFIGS: dict[str, dict[str, Any]] = {
    "a kv head for every head": {"num_key_value_heads": 6},
    "grouped heads": {},
    "one kv head": {"num_key_value_heads": 1},
    "tied head": {"tie_word_embeddings": True},
    "a head size of its own": {"head_dim": 10},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "another theta and epsilon": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "rms_norm_eps": 0.1},
    "linear rope": {"rope_parameters": LINEAR},
    "llama3 rope": {"rope_parameters": LLAMA3, "head_dim": 16},
    "yarn rope": {"rope_parameters": YARN, "head_dim": 16},
    "gelu": {"hidden_act": "gelu"},
}


def reference(**changes: Any) -> Any:
    """A Llama of transformers with weights large enough that each of them matters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": 31,
        "hidden_size": 24,
        "intermediate_size": 11,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "max_position_embeddings": 50,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=0.3)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_random_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    theirs = reference(**CONFIGS[name])
    theirs.save_pretrained(tmp_path)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_theta": 9000.0}},
        {"rope_parameters": LINEAR},
        {"rms_norm_eps": 1e-2},
        {"hidden_act": "relu"},
    ],
)
def test_the_comparison_with_transformers_sees_a_wrong_config(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    folders.change_config(tmp_path, **changes)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) > 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = reference()
    theirs.to(dtype).save_pretrained(tmp_path)
    found = checkpoint.load(tmp_path)
    assert {tensor.dtype for tensor in found.model.state_dict().values()} == {torch.float32}
    # read again, because .to(dtype) has rounded its rotary frequencies as well
    assert logit_error(found.model, type(theirs).from_pretrained(tmp_path, dtype=torch.float32), LENGTH) < TOLERANCE


def test_shards_that_transformers_wrote_are_one_model(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


@pytest.mark.parametrize("name", ["llama3 rope", "linear rope", "yarn rope"])
def test_rotary_parameters_are_read_where_older_versions_kept_them(name: str, tmp_path: Path) -> None:
    theirs = reference(**CONFIGS[name])
    theirs.save_pretrained(tmp_path)
    new = checkpoint.load(tmp_path)
    old = dict(CONFIGS[name]["rope_parameters"])
    theta = old.pop("rope_theta")
    folders.change_config(tmp_path, rope_parameters=None, rope_theta=theta, rope_scaling=old)
    assert checkpoint.load(tmp_path).config == new.config
    old["type"] = old.pop("rope_type")  # older still
    folders.change_config(tmp_path, rope_scaling=old)
    assert checkpoint.load(tmp_path).config == new.config


def test_a_theta_at_top_level_is_enough(tmp_path: Path) -> None:
    assert rotary_of(checkpoint.load(folders.write_llama(tmp_path)).config) == RotaryConfig(theta=1000.0)


def test_llama3_falls_back_to_the_trained_length(tmp_path: Path) -> None:
    rope = {key: value for key, value in LLAMA3.items() if not key.startswith("original")}
    rotary = rotary_of(checkpoint.load(folders.write_llama(tmp_path, rope_scaling=rope)).config)
    assert rotary is not None and isinstance(rotary.scaling, Llama3Scaling)
    assert rotary.scaling.original_max_positions == 40


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    absent = dict.fromkeys(("rms_norm_eps", "rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id"))
    config = checkpoint.load(folders.write_llama(tmp_path, **absent)).config
    assert (config.heads[0].norm_eps, rotary_of(config), config.tied_head) == (1e-6, RotaryConfig(theta=10000.0), False)
    assert (config.bos_token, config.eos_tokens) == (1, ())  # transformers reads generation options from this file only


def test_frequencies_that_old_versions_stored_are_passed_over(tmp_path: Path) -> None:
    folder = folders.write_llama(tmp_path)
    folders.change_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(2))
    checkpoint.load(folder)


def test_an_unknown_rope_type_lists_the_known_ones(tmp_path: Path) -> None:
    folder = folders.write_llama(tmp_path, rope_scaling={"rope_type": "proportional", "factor": 2.0})
    message = 'rope_type in the rotary parameters of config.json to be one of default, .*; received "proportional"'
    with pytest.raises(UserError, match=message):
        checkpoint.load(folder)


def test_a_rotary_parameter_that_we_lack_is_refused_by_name(tmp_path: Path) -> None:
    folder = folders.write_llama(tmp_path, rope_parameters={**LINEAR, "attention_factor": 0.5})
    with pytest.raises(UserError, match="for the type linear of factor, rope_theta; received .*attention_factor"):
        checkpoint.load(folder)


def test_two_different_places_for_rotary_parameters_are_refused(tmp_path: Path) -> None:
    folder = folders.write_llama(tmp_path, rope_parameters=LINEAR, rope_scaling=LLAMA3)
    with pytest.raises(UserError, match="expected rope_scaling in config.json to be absent beside rope_parameters"):
        checkpoint.load(folder)


def test_a_missing_rotary_factor_is_named(tmp_path: Path) -> None:
    folder = folders.write_llama(tmp_path, rope_scaling={"rope_type": "linear"})
    with pytest.raises(
        UserError, match="expected factor in the rotary parameters.* a finite positive number; received no"
    ):
        checkpoint.load(folder)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_key_value_heads": 4}, "num_key_value_heads .* a divisor of num_attention_heads=6; received 4"),
        ({"head_dim": None, "hidden_size": 20}, "num_attention_heads .* a divisor of hidden_size=20; received 6"),
        ({"head_dim": 5}, "an even head_size of at most 16384 for rotary positions; received 5"),
        ({"hidden_act": "laplace"}, 'hidden_act in config.json to be one of relu, .*; received "laplace"'),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings in config.json to be true or false; received "no"'),
        ({"rms_norm_eps": 0}, "rms_norm_eps in config.json to be a finite positive number; received 0"),
        ({"rope_theta": 10**400}, "rope_theta in config.json to be a finite positive number; received 1000"),
        ({"rope_scaling": 3}, "rope_scaling in config.json to be an object; received 3"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers in config.json to be at most 1024; received 1000000000000"),
        ({"hidden_size": 10**9}, "width to be an integer from 1 to 1048576; received 1000000000"),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        checkpoint.load(folders.write_llama(tmp_path, **changes))
