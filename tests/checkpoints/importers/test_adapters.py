"""LoRA adapters beside a model, compared with peft and with transformers, which loads both."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import folders
from checkpoints.importers.peers import TOLERANCE, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft about transformers, and about settings that it corrects
TIED = {"tie_word_embeddings": True}
ONE = {"target_modules": ["q_proj", "down_proj"]}
LLAMAS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {**ONE, "lora_alpha": 5}),
    (
        {},
        {
            "target_modules": r".*\.(q|k)_proj",
            "use_rslora": True,
            "rank_pattern": {"k_proj": 2, r"^model\.layers\.1\.self_attn\.q_proj": 4},
            "alpha_pattern": {r"layers\.1.*q_proj": 7},
        },
    ),
    ({}, {"target_modules": "all-linear"}),
    ({}, {**ONE, "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm"]}),
    (TIED, {**ONE, "modules_to_save": ["lm_head", "embed_tokens"]}),
    (TIED, {**ONE, "modules_to_save": ["lm_head"]}),
    (TIED, {"target_modules": ["embed_tokens", "v_proj"], "lora_alpha": 3}),
    (TIED, {"target_modules": ["lm_head"]}),
    ({}, {"target_modules": ["embed_tokens", "lm_head"], "lora_alpha": 3}),
    ({"attention_bias": True}, {"target_modules": ["q_proj"], "bias": "lora_only", "layers_to_transform": [1]}),
]
GPT2S: list[dict[str, Any]] = [
    {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "lora_alpha": 5},
    {"target_modules": ["c_fc", "attn.c_proj"], "bias": "all"},  # attn.c_proj is square
]


def adapted(folder: Path, write: Callable[..., Path], changes: dict[str, Any], lora: dict[str, Any]) -> Any:
    """Writes a model with a random adapter in one folder; returns peft's model. The adapter's weights all matter."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    write(folder / "base", **changes)
    if changes == TIED:
        folders.change_tensors(folder / "base", lm_head__weight=None)
    if changes.get("attention_bias"):
        heads = {"q": 24, "k": 12, "v": 12, "o": 18}
        names = {
            f"model__layers__{n}__self_attn__{part}_proj__bias": size for n in (0, 1) for part, size in heads.items()
        }
        folders.change_tensors(folder / "base", **{name: torch.randn(size) for name, size in names.items()})
    config = LoraConfig(task_type="CAUSAL_LM", **{"r": 3, **lora})
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "base"), config)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    model.save_pretrained(folder / "adapter")
    shutil.copytree(folder / "base", folder / "both")
    for file in (folder / "adapter").glob("adapter*"):
        shutil.copy(file, folder / "both")
    return model.eval()


def check(folder: Path, theirs: Any) -> checkpoint.Checkpoint:
    from transformers import AutoModelForCausalLM

    found = checkpoint.load(folder / "both")
    assert logit_error(checkpoint.load(folder / "base").model, theirs, 17) > 1e-3
    assert logit_error(found.model, theirs, 17) < TOLERANCE
    assert logit_error(found.model, AutoModelForCausalLM.from_pretrained(folder / "both").eval(), 17) < TOLERANCE
    assert {"adapter_config.json", "adapter_model.safetensors"} <= found.provenance["origin"]["files"].keys()
    return found


@pytest.mark.parametrize("changes, lora", LLAMAS)
def test_a_llama_with_lora(changes: dict[str, Any], lora: dict[str, Any], tmp_path: Path) -> None:
    found = check(tmp_path, adapted(tmp_path, folders.write_llama, changes, lora))
    assert not found.config.tied_head
    [note] = [note for note in found.notes if "adapter" in note]
    assert note.startswith("adapter_model.safetensors is merged: ")


@pytest.mark.parametrize("lora", GPT2S)
def test_a_gpt2_with_lora(lora: dict[str, Any], tmp_path: Path) -> None:
    assert check(tmp_path, adapted(tmp_path, folders.write_gpt2, {}, lora)).config.tied_head


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and an adapter, written without peft."""
    folder = folders.write_llama(tmp_path_factory.mktemp("lora") / "both")
    folders.write_lora(folder)
    return folder


def copied(lora: Path, tmp_path: Path, **changes: Any) -> Path:
    folder = Path(shutil.copytree(lora, tmp_path / "copy"))
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    return folder


def test_the_formula(lora: Path) -> None:
    """W + alpha / r B A."""
    stored, adapter = (load_file(lora / f"{name}.safetensors") for name in ("model", "adapter_model"))
    a, b = (adapter[f"base_model.model.model.layers.1.self_attn.q_proj.lora_{name}.weight"] for name in "AB")
    found = checkpoint.load(lora)
    expected = stored["model.layers.1.self_attn.q_proj.weight"] + b @ a * (5 / 3)
    [(name, weight)] = [
        (name, w) for name, w in found.model.state_dict().items() if re.search(r"1\.parts\.0\.q\.weight", name)
    ]
    torch.testing.assert_close(weight, expected, msg=name)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"peft_type": "LOHA"},
            'peft_type in adapter_config.json to be "LORA"; received "LOHA"; save the merged model',
        ),
        ({"use_dora": True}, "use_dora in adapter_config.json to be absent, null or false"),
        ({"lora_bias": True}, "lora_bias in adapter_config.json to be absent"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices in adapter_config.json to be absent"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters in adapter_config.json to be absent"),
        ({"layer_replication": [[0, 2]]}, "layer_replication in adapter_config.json to be absent"),
        ({"something_new": 1}, "something_new in adapter_config.json to be absent"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights in adapter_config.json to be an initial value that leaves"),
        ({"r": 2}, r"A and B of the rank 2 of adapter_config.json; received \(3, 18\) and \(24, 3\)"),
        ({"r": "3"}, "r in adapter_config.json to be a finite number"),
        ({"lora_alpha": float("inf")}, "lora_alpha in adapter_config.json to be a finite number"),
        ({"alpha_pattern": {"(a|a)*(a|a)*b": 3}}, "alpha_pattern in adapter_config.json to be names of modules"),
        ({"alpha_pattern": {".*.*.*b": 3}}, r"groups and with at most two \* or \+"),
        ({"alpha_pattern": {"[": 3}}, "alpha_pattern in adapter_config.json to be names of modules"),
        ({"target_modules": ["k_proj"]}, "A and B of LoRA for modules of target_modules"),
        ({"modules_to_save": 3}, None),
    ],
)
def test_what_is_not_merged_is_refused_by_name(
    changes: dict[str, Any], message: str | None, lora: Path, tmp_path: Path
) -> None:
    folder = copied(lora, tmp_path, **changes)
    if message is None:  # the key is not looked at without further tensors
        checkpoint.load(folder)
    else:
        with pytest.raises(UserError, match=message):
            checkpoint.load(folder)


PLACE = "base_model.model.model.layers.1.self_attn"


@pytest.mark.parametrize(
    "name, shape, message",
    [
        (f"{PLACE}.q_proj.lora_A.weight", None, "A and B of LoRA for modules of target_modules"),
        (f"{PLACE}.q_proj.lora_B.weight", (23, 3), "the shapes that its config describes; received .*23×18"),
        (f"{PLACE}.q_proj.lora_B.weight", (24, 3, 1), "A and B of the rank 3"),
        (f"{PLACE}.q_proj.lora_magnitude_vector", (24,), "the tensors of LoRA and of modules_to_save"),
        ("base_model.model.lm_head.weight", (31, 18), "the tensors of LoRA and of modules_to_save"),
        (f"{PLACE}.q_proj.bias", (24,), "the tensors of LoRA and of modules_to_save"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    name: str, shape: tuple[int, ...] | None, message: str, lora: Path, tmp_path: Path
) -> None:
    folder = copied(lora, tmp_path)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors.pop(name, None)
    save_file(tensors | ({} if shape is None else {name: torch.ones(shape)}), file)
    with pytest.raises(UserError, match=message):
        checkpoint.load(folder)


def test_modules_of_another_model_and_resized_embeddings_are_refused(lora: Path, tmp_path: Path) -> None:
    folder = copied(lora, tmp_path, modules_to_save=["embed_tokens"])
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "base_model.model.model.embed_tokens.weight": torch.ones(33, 18)}, file)
    with pytest.raises(UserError, match="model.embed_tokens.weight 33×18 instead of 31×18"):
        checkpoint.load(folder)
    save_file({name.replace("layers.1", "layers.7"): tensor for name, tensor in tensors.items()}, file)
    with pytest.raises(UserError, match="an adapter of weights of this model in .*; received model.layers.7.self_attn"):
        checkpoint.load(folder)


def test_a_pickled_adapter_is_refused(lora: Path, tmp_path: Path) -> None:
    folder = copied(lora, tmp_path)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match="received adapter_model.bin, a pickle; load the adapter with peft and save it"):
        checkpoint.load(folder)
