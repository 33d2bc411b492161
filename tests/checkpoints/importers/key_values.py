"""Test inputs for config.json keys: a small model per family, values per key, and transformers' model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from checkpoints.importers.peers import BART
from t2r_export.checkpoints.importers import IMPORTERS as ALL

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
# not in transformers, so without a reference; test_rwkv7.py and test_fla.py have their keys
NO_CLASS = ("rwkv7", "delta_net", "gated_deltanet", "gla", "kda", "retnet")
# a nested config has the keys of one of these
IMPORTERS = {name: one for name, one in ALL.items() if one.nested is None and name not in NO_CLASS}
TRANSLATORS = ("bart", "marian", "pegasus")
EXPERTS = (
    "dots1",
    "ernie4_5_moe",
    "glm4_moe",
    "granitemoeshared",
    "qwen3_next",
    "qwen3_5_moe_text",
    "lfm2_moe",
    "qwen2_moe",
    "jamba",
    "granitemoe",
    "granitemoehybrid",
    "mixtral",
    "olmoe",
    "qwen3_moe",
)
SAVED = (*EXPERTS, "zamba2")  # transformers stores their weights in another form than in memory
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
GROWING = {  # scales queries by their position
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 3.0,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.3,
}
BAMBA = {
    **NO_HEAD_SIZE,
    "attn_layer_indices": [1],
    "mamba_n_heads": 6,
    "mamba_n_groups": 3,
    "mamba_d_state": 5,
    "mamba_expand": 1,
    "mamba_chunk_size": 16,
    "pad_token_id": 0,
}
OF_EXPERTS = {
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 11,
    "num_experts": 9,
    "num_experts_per_tok": 2,
}
BY_SIGMOIDS = {"moe_intermediate_size": 12, "n_routed_experts": 9, "num_experts_per_tok": 2}
OWN = {
    "gemma": {**LLAMA, "rms_norm_eps": 0.05},
    "gemma2": {**LLAMA, "sliding_window": 5, "query_pre_attn_scalar": 7, "rms_norm_eps": 0.05},
    "gemma3_text": {**LLAMA, "sliding_window": 5, "query_pre_attn_scalar": 7, "sliding_window_pattern": 2},
    "gpt_neox": GPT_NEOX,
    "gpt_neo": {
        "vocab_size": 31,
        "hidden_size": 24,
        "intermediate_size": 11,
        "max_position_embeddings": 24,
        "num_heads": 6,
        "num_layers": 3,
        "attention_types": [[["global", "local"], 1], [["local"], 1]],
        "window_size": 5,
    },
    "bloom": {"vocab_size": 31, "hidden_size": 24, "n_layer": 2, "n_head": 6},
    "bamba": BAMBA,
    "helium": {**LLAMA, "head_dim": 4, "pad_token_id": 0},
    "ministral": {**LLAMA, "sliding_window": 5},
    "nemotron": {**LLAMA, "head_dim": 8},
    "olmo": {**NO_HEAD_SIZE, "pad_token_id": 0},
    "internlm3": {**LLAMA, "pad_token_id": 0},
    "seed_oss": {**LLAMA, "pad_token_id": 0},
    "glm4_moe": {**LLAMA, **BY_SIGMOIDS, "head_dim": 8},
    "dots1": {**LLAMA, **BY_SIGMOIDS, "n_shared_experts": 1, "sliding_window": 5},
    "ernie4_5_moe": {**LLAMA, "moe_intermediate_size": 12, "moe_num_experts": 9, "moe_k": 2},
    "qwen3_next": {**QWEN3_5, **OF_EXPERTS},
    "qwen3_5_moe_text": {key: value for key, value in {**QWEN3_5, **OF_EXPERTS}.items() if key != "intermediate_size"},
    "granitemoeshared": {**LLAMA, "intermediate_size": 12, "shared_intermediate_size": 11},
    "cohere": {**LLAMA, "logit_scale": 0.7},
    "cohere2": {**LLAMA, "logit_scale": 0.7, "sliding_window": 5, "sliding_window_pattern": 2},
    "exaone4": {**LLAMA, "sliding_window": 5, "sliding_window_pattern": 2, "rms_norm_eps": 0.05},
    "glm": {**LLAMA, "head_dim": 8, "pad_token_id": 0},
    "glm4": {**LLAMA, "head_dim": 8, "pad_token_id": 0},
    "ministral3": {**LLAMA, "rope_parameters": GROWING},
    "cwm": {**LLAMA, "sliding_window": 5, "eos_token_id": 2},
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
    # torch requires rows of 16-byte multiples
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

# values for keys whose type is not enough to derive them
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
    "attn_layer_indices": [[0, 2], [], None, [1.0]],
    "attention_types": [[[["local"], 3]], [[["global"], 2]], [[["full"], 3]]],
    "attention_layers": [["local"] * 3, ["global", "full", "local"], 3],
    "window_size": [4, 1],
    "num_layers": [2],
    "n_embed": [12],
    "first_k_dense_replace": [0, 2],
    "moe_layer_start_index": [0, 2],
    "moe_layer_end_index": [1, -1],
    "moe_layer_interval": [2],
    "n_group": [3],
    "topk_group": [2],
    "moe_norm_min": [0.9],
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
# keys that only change together (see PAIRS), or that transformers' class does not accept either
BOUND = {("mamba2", key) for key in ("expand", "hidden_size", "num_heads")}
BOUND |= {
    ("zamba2", "layer_types"),
    ("falcon_h1", "layer_types"),
    ("recurrent_gemma", "layer_types"),
    ("ministral3", "rope_parameters"),
    ("bamba", "layer_types"),
    ("gpt_neo", "num_layers"),
    *(("helium", key) for key in ("hidden_size", "num_attention_heads")),
    *(("internlm3", key) for key in ("bias", "qkv_bias")),
    ("marian", "decoder_vocab_size"),  # transformers draws a table of another size at random when it opens a folder
}


def config_class(family: str) -> Any:
    import transformers

    return transformers.models.auto.configuration_auto.CONFIG_MAPPING[family]


def values(key: str, default: Any) -> list[Any]:
    """Values to try for a key, from its name or the type of its default."""
    if key in VALUES:
        return VALUES[key]
    if isinstance(default, bool):
        return [True, False, None]
    return [default + 1, 3] if isinstance(default, int) else [0.3] if isinstance(default, float) else [2, True]


def classes(family: str) -> dict[str, Any]:
    """Keys and defaults of transformers' class of a family."""
    config = config_class(family)
    return {**config().to_dict(), **dict.fromkeys(config.attribute_map)}


def write(folder: Path, family: str, **changes: Any) -> Any:
    """Writes a folder with exactly this config.json and returns what transformers opens; every weight matters.

    Raises any error of transformers if it cannot build the model.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    data = {"model_type": family, **SIZES[family], **changes}
    torch.manual_seed(0)
    kind = AutoModelForSeq2SeqLM if family in TRANSLATORS else AutoModelForCausalLM
    model = kind.from_config(config_class(family).from_dict(json.loads(json.dumps(data))))
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]  # sinusoidal tables are frozen
    for parameter in (*learned, *(buffer for name, buffer in model.named_buffers() if name == "final_logits_bias")):
        spread = (
            0.15 if family.startswith(("gemma2", "gemma3", "qwen3_5", "qwen3_next")) else 0.3
        )  # float32 rounding dominates heads with small output
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
    opened = kind.from_pretrained(folder)  # which may differ from the model in memory
    for name, buffer in model.named_buffers():  # those that no file stores
        opened.get_buffer(name).copy_(buffer)
    return opened.eval()
