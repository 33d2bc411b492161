"""Families that are Llama with mixtures of experts: their keys, their config, and other names of tensors."""

from __future__ import annotations

import re

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import (
    REFUSED,
    TRAINING,
    as_dense,
    experts,
    sparse_layers,
    with_experts,
    with_moe,
)
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    LAYER,
    by_neighbours,
    decoder,
    sliding_layers,
    window_of,
)
from t2r_export.checkpoints.importers.llamas import LLAMAS, MISTRAL, NO_BIASES, QWEN2, windows
from t2r_export.checkpoints.importers.sources import HEAD, ROW
from t2r_export.config.model import ModelConfig

# ERNIE 4.5 with experts (Baidu 2025) in some layers, chosen by weight plus bias, and a shared expert
OF_ERNIE = keys(
    read={
        **LLAMAS["ernie4_5"].keys.read,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "head_dim": None,
        "moe_intermediate_size": 1536,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    },
    refused={**REFUSED, "moe_norm_min": (1e-12,)},
    harmless=f"{TRAINING} attention_bias mlp_bias",  # the last two are absent from transformers' class
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
)
WEIGHTS_EPS = 1e-12  # smallest divisor in transformers' class


def _ernie4_5_moe(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    model = decoder(fields, qkv_bias=bias, ffn_bias=bias, head_bias=bias)
    count = len(model.layers)
    each = experts(fields, "moe_num_experts", "moe_intermediate_size", top="moe_k", choice_bias=True, eps=WEIGHTS_EPS)
    start, interval = fields.size("moe_layer_start_index", least=0), fields.size("moe_layer_interval")
    end = fields.size("moe_layer_end_index", least=-1)
    last = count - 1 if end == -1 else end
    sparse = [start <= layer <= last and (layer + 1) % interval == 0 for layer in range(count)]
    shared = fields.size("moe_num_shared_experts", least=0) * fields.size("moe_intermediate_size")
    return with_moe(model, each, sparse, size=shared)


BIAS = f"{LAYER}.mlp.moe_statics.e_score_correction_bias"
ERNIE4_5_MOE = with_experts(
    OF_ERNIE,
    _ernie4_5_moe,
    {"moe.choice_bias": BIAS},
    lambda model: {BIAS: ROW, **by_neighbours(model)},
    renamed=as_dense("shared_experts"),
    outside=frozenset({HEAD, "lm_head.bias"}),
    buffers=re.compile(r"model\.mtp_.*|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)


# Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral with experts
OF_MIXTRAL = keys(
    read={
        **DECODER,
        **MISTRAL,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    refused=REFUSED,
    harmless=f"{NO_BIASES} {TRAINING} router_jitter_noise",
    aliases={"num_experts": "num_local_experts"},
)


def _mixtral(fields: Fields) -> ModelConfig:
    return with_moe(decoder(fields, windows(fields), qkv_bias=False, output_bias=False), experts(fields))


MIXTRAL = with_experts(OF_MIXTRAL, _mixtral, where=f"{LAYER}.block_sparse_moe", matrices=("w1", "w3", "w2"))


# OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): norms of q and k over all heads, and experts
OF_OLMOE = keys(
    read={
        **DECODER,
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "eos_token_id": 50279,
    },
    refused=REFUSED,
    harmless=TRAINING,
    aliases={"num_local_experts": "num_experts"},
)


def _olmoe(fields: Fields) -> ModelConfig:
    each = experts(fields, "num_experts", renormalize=fields.flag("norm_topk_prob"))
    return with_moe(decoder(fields, heads={"qk_norm": True, "qk_norm_wide": True}), each)


OLMOE = with_experts(OF_OLMOE, _olmoe)


# Qwen1.5 and Qwen2 with experts (Yang et al. 2024, arXiv 2407.10671, section 2.2.2) in all or some layers, with a
# shared expert weighted by a sigmoid
OF_QWEN2 = keys(
    read={
        **DECODER,
        **QWEN2,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
    },
    refused=REFUSED,
    harmless=f"{TRAINING} attention_bias mlp_bias",
    aliases={"num_local_experts": "num_experts"},
)


def _qwen2_moe(fields: Fields) -> ModelConfig:
    most = fields.size("max_window_layers", least=0)
    layers = sliding_layers(fields, window_of(fields), lambda layer: layer % 2 == 0 and layer < most)
    each = experts(fields, "num_experts", "moe_intermediate_size", fields.flag("norm_topk_prob"))
    model = decoder(fields, layers, qkv_bias=fields.flag("qkv_bias"), output_bias=False)
    shared = fields.size("shared_expert_intermediate_size")
    return with_moe(model, each, sparse_layers(fields), size=shared, token_gate=True)


GATE = {"dense.token_gate": f"{LAYER}.mlp.shared_expert_gate"}
QWEN2_MOE = with_experts(OF_QWEN2, _qwen2_moe, GATE, renamed=as_dense("shared_expert"))


# Qwen3 with experts (Yang et al. 2025, arXiv 2505.09388) in all or some layers
OF_QWEN3 = keys(
    read={
        **DECODER,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 768,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    refused=REFUSED,
    harmless=f"{TRAINING} max_window_layers mlp_bias",  # the last two are absent from transformers' class
    aliases={"num_experts": "num_local_experts"},
)


def _qwen3_moe(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, window_of(fields), stated=False)
    each = experts(fields, size="moe_intermediate_size", renormalize=fields.flag("norm_topk_prob"))
    return with_moe(decoder(fields, layers, heads={"qk_norm": True}), each, sparse_layers(fields))


QWEN3_MOE = with_experts(OF_QWEN3, _qwen3_moe)
