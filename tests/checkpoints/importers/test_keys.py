"""Every key of a config.json, for every family: what it does to transformers' model it does to ours, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from checkpoints.importers.key_tables import page
from checkpoints.importers.peers import BART, TOLERANCE, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.importers import IMPORTERS as ALL
from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.generation_keys import GENERATION
from t2r_export.checkpoints.importers.keys import Keys
from t2r_runtime.errors import UserError

LENGTH = 21
GPT2 = {"vocab_size": 29, "n_embd": 12, "n_layer": 3, "n_head": 3, "n_inner": 17, "n_positions": 23}
LLAMA = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 24,
}
MAMBA2 = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_heads": 6,
    "head_dim": 4,
    "state_size": 5,
    "n_groups": 3,
    "chunk_size": 16,
}
MAMBA = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2, "state_size": 5, "time_step_rank": 3}
GRANITE = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "shared_intermediate_size": 11,
    "num_local_experts": 0,
    "position_embedding_type": "rope",
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 6,
    "mamba_n_groups": 3,
    "mamba_d_state": 5,
    "mamba_expand": 1,
    "mamba_chunk_size": 16,
}
# in transformers, so that there is nothing to compare with; test_rwkv7.py and test_fla.py have their keys
NO_CLASS = ("rwkv7", "delta_net", "gated_deltanet", "gla", "kda", "retnet")
# nested ones have the keys of one of these
IMPORTERS = {name: one for name, one in ALL.items() if one.nested is None and name not in NO_CLASS}
TRANSLATORS = ("bart", "marian", "pegasus")
EXPERTS = ("lfm2_moe", "qwen2_moe", "jamba", "granitemoe", "granitemoehybrid", "mixtral", "olmoe", "qwen3_moe")
SAVED = (*EXPERTS, "zamba2")  # transformers stores them in another form than it keeps them
NO_HEAD_SIZE = {key: value for key, value in LLAMA.items() if key != "head_dim"}
LFM2 = {
    **NO_HEAD_SIZE,
    "full_attn_idxs": [1],
    "block_multiple_of": 4,
}
FALCON = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "mamba_d_ssm": 24,
    "mamba_n_heads": 6,
    "mamba_n_groups": 3,
    "mamba_d_state": 5,
    "mamba_chunk_size": 16,
}
QWEN3_5 = {
    **LLAMA,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "full_attention_interval": 2,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 4,
    "rms_norm_eps": 0.05,
}
OLMO_HYBRID = {
    **LLAMA,
    "head_dim": 8,
    "linear_num_key_heads": 3,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 4,
    "rms_norm_eps": 0.05,
    "pad_token_id": 0,
}
RECURRENT_GEMMA = {
    **{key: value for key, value in LLAMA.items() if key not in ("head_dim", "max_position_embeddings")},
    "attention_window_size": 5,
    "lru_width": 18,
    "block_types": ["recurrent", "attention"],
}
NEMOTRON = {
    "vocab_size": 31,
    "hidden_size": 12,
    "layers_block_type": ["linear_attention", "mlp", "full_attention"],
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "intermediate_size": 11,
    "ssm_state_size": 5,
    "mamba_num_heads": 6,
    "mamba_head_dim": 4,
    "n_groups": 3,
    "chunk_size": 16,
}
ZAMBA2 = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "layers_block_type": ["hybrid", "mamba", "hybrid"],
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "intermediate_size": 11,
    "n_mamba_heads": 6,
    "mamba_ngroups": 3,
    "mamba_d_state": 5,
    "chunk_size": 16,
    "adapter_rank": 7,
    "num_mem_blocks": 1,
    "use_mem_rope": True,
}
HEADS = {"num_attention_heads": 3, "num_key_value_heads": 1}
GPT_NEOX = {key: value for key, value in {**LLAMA, **HEADS}.items() if key not in ("num_key_value_heads", "head_dim")}
OPT = {
    "vocab_size": 31,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "ffn_dim": 11,
    "max_position_embeddings": 24,
}
GROWING = {  # queries scaled by their position
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 3.0,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.3,
}
OWN = {
    "gemma": {**LLAMA, "rms_norm_eps": 0.05},
    "gemma2": {**LLAMA, "sliding_window": 5, "query_pre_attn_scalar": 7, "rms_norm_eps": 0.05},
    "gemma3_text": {**LLAMA, "sliding_window": 5, "query_pre_attn_scalar": 7, "sliding_window_pattern": 2},
    "gpt_neox": GPT_NEOX,
    "cohere": {**LLAMA, "logit_scale": 0.7},
    "cohere2": {**LLAMA, "logit_scale": 0.7, "sliding_window": 5, "sliding_window_pattern": 2},
    "exaone4": {**LLAMA, "sliding_window": 5, "sliding_window_pattern": 2, "rms_norm_eps": 0.05},
    "glm": {**LLAMA, "head_dim": 8, "pad_token_id": 0},
    "glm4": {**LLAMA, "head_dim": 8, "pad_token_id": 0},
    "ministral3": {**LLAMA, "rope_parameters": GROWING},
    "olmo3": {**LLAMA, "sliding_window": 5},
    "opt": OPT,
    "arcee": {**LLAMA, "head_dim": 4},
    "phi": GPT_NEOX,
    "phi3": {**LLAMA, "pad_token_id": 0},
    "smollm3": {**LLAMA, "pad_token_id": 0, "no_rope_layer_interval": 2},
    "stablelm": {**GPT_NEOX, **HEADS},
    "nemotron_h": NEMOTRON,
    "falcon_h1": FALCON,
    "gpt2": GPT2,
    "granite_swa": {**LLAMA, "num_hidden_layers": 3, "sliding_window": 5},
    "granitemoehybrid": GRANITE,
    "lfm2": LFM2,
    "lfm2_moe": {
        **NO_HEAD_SIZE,
        "layer_types": ["conv", "full_attention", "conv"],
        "moe_intermediate_size": 12,
        "num_dense_layers": 1,
        "num_experts": 9,
    },
    "lfm3": {**LLAMA, "head_dim": 8, "sliding_window": 6, "pad_token_id": 0, "norm_eps": 0.05},
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    # torch asks for 16 bytes a row
    **dict.fromkeys(("granitemoe", "mixtral"), {**LLAMA, "intermediate_size": 12}),
    "olmoe": {**NO_HEAD_SIZE, "intermediate_size": 12, "num_experts": 9, "num_experts_per_tok": 2},
    "jamba": {
        **{key: value for key, value in NO_HEAD_SIZE.items() if key != "max_position_embeddings"},
        "intermediate_size": 12,
        "num_experts": 9,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "mamba_d_state": 5,
    },
    "qwen2_moe": {
        **LLAMA,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 11,
        "num_experts": 9,
    },
    "qwen3_moe": {**LLAMA, "moe_intermediate_size": 12, "num_local_experts": 9},
    "mamba2": MAMBA2,
    "olmo_hybrid": OLMO_HYBRID,
    "recurrent_gemma": RECURRENT_GEMMA,
    "qwen3_5_text": QWEN3_5,
    "zamba2": ZAMBA2,
}
SIZES = {**dict.fromkeys(IMPORTERS, LLAMA), **dict.fromkeys(TRANSLATORS, BART), **OWN}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 3.0}
FULL, SLIDING = "full_attention", "sliding_attention"
PROPORTIONAL = {
    FULL: {"rope_type": "proportional", "rope_theta": 9.0, "partial_rotary_factor": 0.7, "factor": 2.0},
    SLIDING: {"rope_type": "proportional"},
}
BY_LAYER = {FULL: {**LINEAR, "rope_theta": 50.0}, SLIDING: {"rope_type": "default", "rope_theta": 9.0}}

# what a key is changed to, where its type says nothing better
VALUES: dict[str, list[Any]] = {
    "activation_function": ["gelu", "relu", "silu", "mish", "relu2", "laplace"],
    "hidden_act": ["gelu", "gelu_new", "relu", "quick_gelu", "gelu_10", "laplace"],
    "vocab_size": [19],
    "hidden_size": [18, 36],
    "n_embd": [6, 24],
    "d_model": [18, 24],
    "n_head": [2, 6],
    "n_positions": [21, 40],
    "num_attention_heads": [3, 12],
    "num_hidden_layers": [5, 3],
    "num_key_value_heads": [1, 2, 6, None],
    "head_dim": [4, None],
    "n_inner": [None, 5],
    "rms_norm_eps": [0.1],
    "layer_norm_epsilon": [0.1],
    "rope_theta": [50.0, 3],
    "rope_parameters": [LLAMA3, LINEAR, {"rope_type": "dynamic", "factor": 2.0}, {"rope_theta": 9}, BY_LAYER],
    "rope_scaling": [LLAMA3, LINEAR, {"type": "linear", "factor": 2.0}, {}],
    "original_max_position_embeddings": [9],
    "time_step_limit": [[0.3, 0.9], [-1.0, float("inf")], [0.9, 0.3], [0.0]],
    "layers_block_type": [["hybrid", "hybrid", "mamba"], GRANITE["layer_types"], ["mlp", "mamba", "attention"]],
    "hybrid_override_pattern": ["M*-", "EM*"],
    "mamba_num_heads": [3, 12],
    "mamba_hidden_act": ["gelu"],
    "mlp_hidden_act": ["gelu", "silu", "laplace"],
    "mamba_ssm_cache_dtype": ["float16"],
    "mtp_layers_block_type": [["mlp"]],
    "num_heads": [3, 12],
    "time_step_init_scheme": ["constant"],
    "intermediate_size": [8, 3],
    "moe_intermediate_size": [8],
    "attn_layer_period": [2],
    "attn_layer_offset": [0, 3],
    "expert_layer_period": [3],
    "expert_layer_offset": [0],
    "mlp_only_layers": [[1], [], None, [2.0]],
    "mamba_n_heads": [3, 12],
    "n_mamba_heads": [3, 12, 7],
    "mamba_ngroups": [1, 2, 6, 4],
    "num_mem_blocks": [2, 3],
    "attention_head_dim": [8, 6],
    "attention_hidden_size": [48],
    "hybrid_layer_ids": [[0, 2]],
    "mamba_headdim": [8],
    "mamba_n_groups": [1, 2, 6, 4],
    "mamba_expand": [2, 4],
    "mamba_d_head": [4, 5],
    "mamba_d_ssm": [12, None, 48],
    "ssm_multipliers": [[0.5, 0.6, 0.7, 0.8, 0.9], [1.0, 2], None],
    "mlp_multipliers": [[0.5, 2], None],
    "num_local_experts": [0, 2],
    "position_embedding_type": ["rope", "nope", None, "alibi"],
    "n_groups": [1, 2, 6, 4],
    "max_position_embeddings": [30],
    "sliding_window": [5, 1, None],
    "layer_types": [["full_attention", "linear_attention", "mamba"], [FULL] * 3, [SLIDING] * 3, [FULL, SLIDING, FULL]],
    "max_window_layers": [0, 2],
    "block_types": [["recurrent", "recurrent", "attention"], ["attention"], [], ["mamba"]],
    "lru_width": [12, None, 20],
    "layer_rope_theta": [[50.0, 0, 9], [0, 0.0, 0], [5.0], [1, -1, 2], None],
    "linear_num_key_heads": [2, 6, 4],
    "linear_conv_kernel_dim": [2, 5, 1],
    "full_attention_interval": [1, 3, 4],
    "partial_rotary_factor": [0.5, 0.3, None],
    "full_attn_idxs": [[0, 2], [], None, [2.0]],
    "block_ffn_dim_multiplier": [1.3, None, 2],
    "conv_L_cache": [2, 4, 1],
    "per_layer_config": [{"1": {"intermediate_size": 7}}, {}],
    "pruned_heads": [{"0": [1]}, {}],
    "hidden_activation": ["gelu", "silu", "laplace"],
    "layer_norm_eps": [0.1],
    "norm_epsilon": [0.1],
    "query_pre_attn_scalar": [5, None],
    "sliding_window_pattern": [1, 3, None],
    "final_logit_softcapping": [3.0, None],
    "rope_local_base_freq": [50.0],
    "rotary_emb_base": [50.0, 3],
    "rotary_pct": [0.5, 0.4, 0.01],
    "word_embed_proj_dim": [24, 12],
    "no_rope_layer_interval": [1, 3],
    "no_rope_layers": [[1, 0, 1], [0, 1, 1], [1, 1], []],
    "bos_token_id": [3, -1, 50256],
    "eos_token_id": [3, [2, 50256]],
    "pad_token_id": [0],
    "id2label": [{"0": "a"}],
    "label2id": [{"a": 0}],
    "architectures": [["Other"]],
    "dtype": ["float32"],
    "torch_dtype": ["float32"],
    "summary_type": ["mean"],
    "summary_activation": ["tanh"],
    "attn_implementation": ["eager"],
    "_attn_implementation": ["eager"],
    "problem_type": ["regression"],
}

NOT_CHANGED = {"model_type", "quantization_config"}
# not one without another, which PAIRS has, or which transformers' class does not take either
BOUND = {("mamba2", key) for key in ("expand", "hidden_size", "num_heads")}
BOUND |= {
    ("zamba2", "layer_types"),
    ("falcon_h1", "layer_types"),
    ("recurrent_gemma", "layer_types"),
    ("ministral3", "rope_parameters"),
}


def config_class(family: str) -> Any:
    import transformers

    return transformers.models.auto.configuration_auto.CONFIG_MAPPING[family]


def values(key: str, default: Any) -> list[Any]:
    """What to change a key to, from its name or from the type of its default."""
    if key in VALUES:
        return VALUES[key]
    if isinstance(default, bool):
        return [True, False, None]
    return [default + 1, 3] if isinstance(default, int) else [0.3] if isinstance(default, float) else [2, True]


def classes(family: str) -> dict[str, Any]:
    """Keys and defaults of transformers' class of a family."""
    config = config_class(family)
    return {**config().to_dict(), **dict.fromkeys(config.attribute_map)}


@pytest.mark.parametrize("family", IMPORTERS)
def test_every_key_of_transformers_is_read_refused_or_harmless(family: str) -> None:
    keys = IMPORTERS[family].keys
    tables = (keys.read.keys(), keys.refused.keys(), keys.harmless, keys.aliases.keys())
    for key in classes(family):
        assert sum(key in table for table in tables) == 1, key
    assert keys.aliases.items() >= config_class(family).attribute_map.items()


def test_the_page_of_keys_is_that_of_the_tables() -> None:
    """python tests/checkpoints/importers/key_tables.py > docs/config-keys.md"""
    written = Path(__file__).parents[3] / "docs" / "config-keys.md"
    assert written.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("family", IMPORTERS)
def test_a_key_that_is_called_read_is_read(family: str) -> None:
    keys = IMPORTERS[family].keys
    fields = Fields(SIZES[family], "config.json", keys)
    IMPORTERS[family].config(fields)
    for further in (IMPORTERS[family].factors, IMPORTERS[family].repeated, IMPORTERS[family].sums):
        further(fields)
    elsewhere = {"model_type", "quantization_config", "bos_token_id", "eos_token_id"}
    if family in TRANSLATORS:
        elsewhere |= {"decoder_start_token_id"}
    conditional = {"sliding_window"} if "use_sliding_window" in keys.read else set()
    assert fields.read | elsewhere | conditional == keys.read.keys()


@pytest.mark.parametrize("family", IMPORTERS)
def test_an_absent_key_means_what_it_means_to_transformers(family: str) -> None:
    config = config_class(family)
    fields = {name: field.default for name, field in config.__dataclass_fields__.items()}
    fields = {config.attribute_map.get(name, name): default for name, default in fields.items()}
    thetas = dict.fromkeys(("rope_theta", "rotary_emb_base"), getattr(config, "default_theta", None))
    if isinstance(config.default_theta, dict):
        thetas = {"rope_theta": config.default_theta["global"], "rope_local_base_freq": config.default_theta["local"]}
    for key, value in IMPORTERS[family].keys.read.items():
        if key in thetas:
            assert value == thetas[key]
        elif key not in ("model_type", "quantization_config"):
            assert value == fields.get(key), key


def write(folder: Path, family: str, **changes: Any) -> Any:
    """A folder with exactly this config.json, and transformers' model of it, with weights that all matter.

    Raises whatever transformers does where it cannot make such a model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    data = {"model_type": family, **SIZES[family], **changes}
    torch.manual_seed(0)
    kind = AutoModelForSeq2SeqLM if family in TRANSLATORS else AutoModelForCausalLM
    model = kind.from_config(config_class(family).from_dict(json.loads(json.dumps(data))))
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]  # sines are frozen
    for parameter in (*learned, *(buffer for name, buffer in model.named_buffers() if name == "final_logits_bias")):
        spread = (
            0.15 if family in ("gemma2", "gemma3_text", "qwen3_5_text") else 0.3
        )  # a head whose output is small is float32's to move
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=spread)
    model.tie_weights()
    ids = torch.zeros(1, LENGTH, dtype=torch.int64)
    with torch.no_grad():
        model(**dict.fromkeys(("input_ids", "decoder_input_ids")[: 1 + (family in TRANSLATORS)], ids))  # or raises
    head = "lm_head.weight" if model.config.tie_word_embeddings else None
    stored = ("model.", "backbone.") if family == "nemotron_h" else ("", "")  # as save_pretrained names them
    tensors = {name.replace(*stored, 1): tensor.clone() for name, tensor in model.state_dict().items() if name != head}
    folder.mkdir(exist_ok=True)
    if family in SAVED:
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink()
    else:
        save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(data))
    return model.eval()


def cases(kinds: Callable[[Keys], Iterable[str]]) -> list[tuple[str, str]]:
    return [(family, key) for family, one in IMPORTERS.items() for key in sorted(kinds(one.keys))]


def refuses(family: str, key: str, value: Any) -> bool:
    """Whether the importer refuses a config with the value, before it looks at weights."""
    importer = IMPORTERS[family]
    try:
        importer.config(Fields({**SIZES[family], key: value}, "config.json", importer.keys))
    except UserError:
        return True
    return False


@pytest.mark.parametrize("family, key", cases(lambda keys: keys.read.keys() - NOT_CHANGED | keys.aliases.keys()))
def test_a_key_that_is_read_is_obeyed_or_refused(family: str, key: str, tmp_path: Path) -> None:
    default, tried = {**IMPORTERS[family].keys.read, **classes(family)}.get(key), 0
    for value in sorted(values(key, default), key=lambda value: refuses(family, key, value)):
        if tried and refuses(family, key, value):
            continue
        try:
            theirs = write(tmp_path, family, **{key: value})
        except Exception:  # transformers has no such model: nothing to compare with
            continue
        tried += 1
        try:
            ours = checkpoint.load(tmp_path).model
        except UserError:
            continue
        assert logit_error(ours, theirs, LENGTH) < TOLERANCE, value
    assert tried or (family, key) in BOUND


@pytest.mark.parametrize("family", IMPORTERS)
def test_keys_that_are_harmless_are(family: str, tmp_path: Path) -> None:
    keys, defaults = IMPORTERS[family].keys, classes(family)
    changed = {key: values(key, defaults.get(key))[0] for key in keys.harmless - GENERATION}
    theirs = write(tmp_path, family, **changed)
    found = checkpoint.load(tmp_path)
    assert logit_error(found.model, theirs, LENGTH) < TOLERANCE
    assert not any("not used" in note for note in found.notes)


@pytest.mark.parametrize("family", IMPORTERS)
def test_a_neighbours_key_is_refused_unless_it_changes_nothing(family: str, tmp_path: Path) -> None:
    write(tmp_path, family)
    data = json.loads((tmp_path / "config.json").read_text())
    refused = IMPORTERS[family].keys.refused

    def load(**changes: Any) -> checkpoint.Checkpoint:
        (tmp_path / "config.json").write_text(json.dumps({**data, **changes}))
        return checkpoint.load(tmp_path)

    for place in range(max(map(len, refused.values()), default=0)):  # all of them at once
        assert load(**{key: neutral[place] for key, neutral in refused.items() if place < len(neutral)}).notes == ()
    for key, neutral in refused.items():
        for value in [*values(key, None), {"0": [1]}, 0.5]:
            if not any(type(value) is type(one) and value == one for one in neutral):
                with pytest.raises(UserError, match=f"expected {key} in config.json to be absent"):
                    load(**{key: value})


WITH_WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
PAIRS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 20}}),
    (
        "llama",
        {
            "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 20},
            "original_max_position_embeddings": 6,
        },
    ),
    ("qwen3", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 6}),
    ("llama", {"rope_scaling": LINEAR, "original_max_position_embeddings": 6, "rope_theta": 70}),
    ("qwen2", WITH_WINDOWS),
    ("qwen3", {**WITH_WINDOWS, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("qwen2", {**WITH_WINDOWS, "max_window_layers": 0}),
    ("mistral", {"sliding_window": 4, "layer_types": [SLIDING] * 3}),
    ("mistral", {"sliding_window": None, "layer_types": [FULL] * 3}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("mamba2", {"num_heads": 12, "head_dim": 2}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_head": 4}),
    ("granitemoehybrid", {"mamba_n_heads": 8, "mamba_d_head": 3, "mamba_n_groups": 1, "head_dim": 6}),
    ("granitemoehybrid", {"residual_multiplier": 0.22, "tie_word_embeddings": True, "logits_scaling": 0.5}),
    ("granitemoehybrid", {"layer_types": [FULL] * 3, "hidden_act": "relu", "attention_bias": True}),
    ("mamba2", {"num_heads": 12, "expand": 4, "n_groups": 4}),
    ("mamba2", {"hidden_size": 24, "expand": 1}),
    ("lfm2", {"block_ff_dim": 11, "tie_embedding": False, "layer_types": [FULL, "conv", "conv"], "conv_bias": True}),
    ("qwen3_5_text", {"rope_parameters": {**LINEAR, "rope_theta": 50.0}, "tie_word_embeddings": True}),
    ("qwen3_5_text", {"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}, "attention_bias": True}),
    ("qwen3_5_text", {"layer_types": [FULL, "linear_attention", FULL], "linear_num_key_heads": 6, "head_dim": 16}),
    ("olmo_hybrid", {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "rope_theta": 9.0}),
    ("olmo_hybrid", {"linear_key_head_dim": None, "linear_value_head_dim": None, "linear_num_value_heads": 12}),
    ("lfm2", {"block_ffn_dim_multiplier": 1.7, "block_multiple_of": 3, "head_dim": 6, "conv_L_cache": 5}),
    ("granite_swa", {"layer_rope_theta": [0, 50.0, 9], "rope_scaling": LINEAR, "residual_multiplier": 0.4}),
    ("lfm3", {"num_hidden_layers": 5, "rope_parameters": BY_LAYER, "use_attention_gate": False}),
    ("lfm3", {"layer_types": [SLIDING, "conv", FULL], "rope_parameters": PROPORTIONAL, "attention_bias": True}),
    ("gpt_neox", {"rope_parameters": {**LINEAR, "rope_theta": 50.0}, "rotary_pct": 0.5, "rotary_emb_base": 9.0}),
    ("gpt_neox", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 6, "use_parallel_residual": False}),
    ("opt", {"do_layer_norm_before": False, "enable_bias": False, "word_embed_proj_dim": 24}),
    ("opt", {"_remove_final_layer_norm": True, "activation_function": "gelu", "tie_word_embeddings": False}),
    ("smollm3", {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 4}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("granite", {"residual_multiplier": 0.22, "tie_word_embeddings": True, "logits_scaling": 0.5, "mlp_bias": True}),
    ("olmo2", {"attention_bias": True, "head_dim": 4}),
    ("exaone4", {"sliding_window": None, "layer_types": [FULL] * 3}),
    ("ministral3", {"rope_parameters": {**GROWING, "llama_4_scaling_beta": 0.0, "mscale": 1.0, "mscale_all_dim": 0.0}}),
    ("ministral3", {"rope_parameters": None, "rope_theta": 70.0}),
    ("phi3", {"sliding_window": 4, "partial_rotary_factor": 0.4, "rope_theta": 70.0}),
    (
        "gemma3_text",
        {"rope_parameters": BY_LAYER, "layer_types": [FULL, SLIDING, FULL], "final_logit_softcapping": 3.0},
    ),
    ("gemma3_text", {"rope_scaling": LINEAR, "rope_theta": 70.0, "rope_local_base_freq": 9.0}),
    ("gemma3_text", {"rope_parameters": {FULL: {**LLAMA3, "rope_theta": 70.0}}, "attention_bias": True}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    ("starcoder2", {"sliding_window": 4, "use_bias": False, "hidden_act": "relu"}),
    ("gpt2", {"reorder_and_upcast_attn": True, "activation_function": "gelu_python"}),
]


@pytest.mark.parametrize("family, changes", PAIRS)
def test_keys_together_are_obeyed(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = write(tmp_path, family, **changes)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


@pytest.mark.parametrize(
    "family, key, value",
    [
        *((family, "is_causal", value) for family in IMPORTERS for value in (False, None)),
        ("llama", "sliding_window", 5),
        ("llama", "logits_scaling", 2.0),
        ("llama", "no_rope_layers", [1, 0, 1]),
        ("qwen2", "embedding_multiplier", 12),
        ("qwen3", "final_logit_softcapping", 30.0),
        ("llama", "softcap", 1),
        ("gpt2", "lm_head_multiplier", 2),
        ("mistral", "layer_types", [FULL, SLIDING, FULL]),
        ("mistral", "attention_chunk_size", 8),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "add_cross_attention", True),
        ("llama", "partial_rotary_factor", 0.5),
        ("stablelm", "qk_layernorm", True),
        ("opt", "layer_norm_elementwise_affine", False),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
        ("gpt_neox", "rope_theta", 500.0),
        ("llama", "per_layer_config", {"1": {"rms_norm_eps": 0.5}}),
    ],
)
def test_a_key_that_changes_the_function_is_refused_by_name(family: str, key: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(UserError, match=f"expected {key} in config.json to be absent"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_activation_of_transformers_is_obeyed_or_refused(family: str, tmp_path: Path) -> None:
    from transformers.activations import ACT2CLS

    key = "activation_function" if family == "gpt2" else "hidden_act"
    for name in ACT2CLS:
        try:
            theirs = write(tmp_path, family, **{key: name})
        except Exception:  # needs what is not installed, or has weights of its own
            assert name not in ACTIVATIONS
            continue
        if name in ACTIVATIONS:
            assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE, name
        else:
            with pytest.raises(UserError, match=f"{key} in config.json to be one of|tensors that its config"):
                checkpoint.load(tmp_path)
