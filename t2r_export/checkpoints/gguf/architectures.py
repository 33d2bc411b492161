"""Architectures of GGUF files: their keys and tensors, as config.json and safetensors of a family have them.

llama.cpp's converters write a model's keys under other names, and change a few tensors. The table undoes that, so that
the importers of Hugging Face folders read the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from t2r_export.checkpoints.gguf.architecture import (
    ENDS,
    EPS,
    EXPERT,
    NAMES,
    Architecture,
    Change,
    Config,
    has,
    less_one,
    neighbours,
    sizes,
    windows,
    with_biases,
)
from t2r_export.checkpoints.gguf.delta import DELTA, EXPERTS_OF_QWEN
from t2r_export.checkpoints.gguf.hybrids import HYBRIDS
from t2r_export.checkpoints.gguf.jamba import JAMBA
from t2r_export.checkpoints.gguf.llamas import LLAMAS
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.recurrent import RECURRENT
from t2r_export.checkpoints.gguf.rope import NUMBER
from t2r_export.checkpoints.gguf.rwkv7 import RWKV7
from t2r_export.checkpoints.gguf.sparse import SPARSE
from t2r_export.checkpoints.importers.sources import TRANSPOSED, permuted

GEMMA2 = {**NAMES, "ffn_norm": "pre_feedforward_layernorm"} | {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
OF_PHI3 = {**NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
OF_STARCODER2 = {**NAMES, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
EXPERTS = {f"ffn_{part}_exps": f"mlp.experts.{EXPERT}.{part}_proj" for part in ("gate", "up", "down")}
OF_EXPERTS = {**NAMES, **EXPERTS, "ffn_gate_inp": "mlp.gate"}
OF_QWEN2_MOE = {**NAMES, **EXPERTS_OF_QWEN}
OF_MIXTRAL = {
    f"ffn_{part}_exps": f"block_sparse_moe.experts.{EXPERT}.{number}"
    for part, number in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
}
OF_LLAMA = {**NAMES, **OF_MIXTRAL, "ffn_gate_inp": "block_sparse_moe.gate"}
OF_GPT2 = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
OF_BLOOM = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
OF_GPT_NEOX = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}


def _llama(data: Metadata) -> Config:
    """Llama, and with experts Mixtral."""
    if not data.get("expert_count", int, 0):
        return with_biases(data, "llama")
    found = sizes(data, "mixtral")
    return found | {
        "sliding_window": None,
        "num_local_experts": data.get("expert_count"),
        "num_experts_per_tok": data.get("expert_used_count"),
        "intermediate_size": data.get("expert_feed_forward_length", int, found["intermediate_size"]),
    }


def _experts(data: Metadata, model_type: str, renormalize: bool, size: str, lacks: str = "") -> Config:
    """Args: size: the key of an expert's hidden size."""
    found = sizes(data, model_type, lacks=lacks)
    return found | {
        "num_experts": data.get("expert_count"),
        "num_experts_per_tok": data.get("expert_used_count"),
        "norm_topk_prob": renormalize,
        size: data.get("expert_feed_forward_length", int, found["intermediate_size"]),
    }


def _qwen2_moe(data: Metadata) -> Config:
    found = _experts(data, "qwen2_moe", False, "moe_intermediate_size", "head_dim")
    return found | {"shared_expert_intermediate_size": data.get("expert_shared_feed_forward_length")}


def _granite(data: Metadata) -> Config:
    keys = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }
    return with_biases(data, "granite") | {name: data.get(key, NUMBER) for name, key in keys.items()}


def _gemma2(data: Metadata, model_type: str = "gemma2", largest: int = 46) -> Config:
    """Args: largest: the number of layers of the family's largest model, whose scores llama.cpp scales by its width."""
    found = sizes(data, model_type)
    wide = found["num_hidden_layers"] == largest
    return found | {
        "query_pre_attn_scalar": found["hidden_size"] // max(found["num_attention_heads"], 1)
        if wide
        else found["head_dim"],
        "sliding_window": data.get("attention.sliding_window"),
        "attn_logit_softcapping": data.get("attn_logit_softcapping", NUMBER, 0.0) or None,
        "final_logit_softcapping": data.get("final_logit_softcapping", NUMBER, 0.0) or None,
    }


def _gemma3(data: Metadata) -> Config:
    found = _gemma2(data, "gemma3_text", 62) | windows(data, 6)
    rope = found.pop("rope_parameters")
    local = {"rope_type": "default", "rope_theta": data.get("rope.freq_base_swa", NUMBER, 10000.0)}
    both = {"full_attention": rope, "sliding_attention": local}
    return found | {"rope_parameters": both}


def _phi3(data: Metadata) -> Config:
    found = sizes(data, "phi3", lacks="head_dim")
    window = data.get("attention.sliding_window", int, 0)
    original = data.get("rope.scaling.original_context_length", int, found["max_position_embeddings"])
    return found | {"sliding_window": window or None, "original_max_position_embeddings": original}


def _gpt2(data: Metadata) -> Config:
    keys = {
        "n_positions": "context_length",
        "n_embd": "embedding_length",
        "n_layer": "block_count",
        "n_head": "attention.head_count",
        "n_inner": "feed_forward_length",
    }
    return {name: data.get(key) for name, key in keys.items()} | {
        "model_type": "gpt2",
        "vocab_size": data.rows("token_embd.weight"),
        "layer_norm_epsilon": data.get("attention.layer_norm_epsilon", NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }


def _transposed(config: Config) -> dict[str, Change]:
    matrices = [name for name in OF_GPT2 if not name.endswith("norm")]
    return {f"{name}.weight": TRANSPOSED.load for name in matrices}


def _gpt_neox(data: Metadata) -> Config:
    found = sizes(data, "gpt_neox", "layer_norm_eps", "head_dim num_key_value_heads")
    return found | {
        "use_parallel_residual": data.get("use_parallel_residual", bool),
        "attention_bias": has(data, "attn_qkv.bias"),
        "rotary_pct": found["rope_parameters"].pop("partial_rotary_factor", 1.0),
    }


def _bloom(data: Metadata) -> Config:
    data.get("feed_forward_length")  # four times the width
    return {
        "model_type": "bloom",
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": data.get("embedding_length"),
        "n_layer": data.layers,
        "n_head": data.same("attention.head_count_kv", data.same("attention.head_count")),
        "layer_norm_epsilon": data.get(EPS, NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }


def _of_heads(key: str) -> Callable[[Config], dict[str, Change]]:
    """Rows of q, k and v that alternate by heads, whose number has this key."""
    return lambda config: {"attn_qkv": permuted((3, config[key], -1), (1, 0, 2)).load}


def _starcoder2(data: Metadata) -> Config:
    found = sizes(data, "starcoder2", "norm_epsilon", "head_dim")
    return found | {"use_bias": has(data, "attn_q.bias"), "sliding_window": None}


def _stablelm(data: Metadata) -> Config:
    found = sizes(data, "stablelm", "layer_norm_eps", "head_dim")
    found["rope_parameters"].setdefault("partial_rotary_factor", 1.0)
    data.get("use_parallel_residual", bool, False)  # llama.cpp goes by the tensors
    return found | {
        "use_qkv_bias": has(data, "attn_q.bias"),
        "use_parallel_residual": not has(data, "ffn_norm.weight"),
    }


ARCHITECTURES: dict[str, Architecture] = {
    "bloom": Architecture(
        _bloom,
        OF_BLOOM,
        {
            "token_embd": "transformer.word_embeddings",
            "token_embd_norm": "transformer.word_embeddings_layernorm",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        "transformer.h.{}",
        _of_heads("n_head"),
    ),
    "gemma": Architecture(lambda data: sizes(data, "gemma"), changes=less_one([*NAMES, *ENDS])),
    "gemma2": Architecture(_gemma2, GEMMA2, changes=less_one([*GEMMA2, *ENDS])),
    "gemma3": Architecture(_gemma3, GEMMA2, changes=less_one([*GEMMA2, *ENDS])),
    "gpt2": Architecture(
        _gpt2,
        OF_GPT2,
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        "transformer.h.{}",
        _transposed,
    ),
    "gptneox": Architecture(
        _gpt_neox,
        OF_GPT_NEOX,
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "lm_head"},
        "gpt_neox.layers.{}",
        _of_heads("num_attention_heads"),
    ),
    "granite": Architecture(_granite, changes=neighbours),
    "llama": Architecture(_llama, OF_LLAMA, changes=neighbours),
    "olmoe": Architecture(lambda data: _experts(data, "olmoe", False, "intermediate_size", "head_dim"), OF_EXPERTS),
    "phi3": Architecture(_phi3, OF_PHI3),
    "qwen2": Architecture(lambda data: sizes(data, "qwen2", lacks="head_dim")),
    "qwen2moe": Architecture(
        _qwen2_moe, OF_QWEN2_MOE, changes=lambda _: {"ffn_gate_inp_shexp": lambda x: x.reshape(1, -1)}
    ),
    "qwen3": Architecture(lambda data: sizes(data, "qwen3")),
    "qwen3moe": Architecture(lambda data: _experts(data, "qwen3_moe", True, "moe_intermediate_size"), OF_EXPERTS),
    "smollm3": Architecture(lambda data: with_biases(data, "smollm3"), changes=neighbours),
    "stablelm": Architecture(_stablelm),
    "starcoder2": Architecture(_starcoder2, OF_STARCODER2),
    **LLAMAS,
    **RECURRENT,
    **DELTA,
    **HYBRIDS,
    **JAMBA,
    **RWKV7,
    **SPARSE,
}
