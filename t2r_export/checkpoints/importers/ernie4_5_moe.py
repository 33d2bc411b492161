"""ERNIE 4.5 with experts (Baidu 2025): ERNIE 4.5 with experts in some layers, chosen by weight plus bias, and a
shared expert."""

from __future__ import annotations

import re

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import REFUSED, TRAINING, as_dense, beside, experts, with_experts
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import LAYER, by_neighbours, decoder
from t2r_export.checkpoints.importers.llamas import LLAMAS
from t2r_export.checkpoints.importers.sources import HEAD, ROW
from t2r_export.config.model import ModelConfig

KEYS = keys(
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


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    model = decoder(fields, qkv_bias=bias, ffn_bias=bias, head_bias=bias)
    count = len(model.layers)
    each = experts(fields, "moe_num_experts", "moe_intermediate_size", top="moe_k", choice_bias=True, eps=WEIGHTS_EPS)
    start, interval = fields.size("moe_layer_start_index", least=0), fields.size("moe_layer_interval")
    end = fields.size("moe_layer_end_index", least=-1)
    last = count - 1 if end == -1 else end
    sparse = [start <= layer <= last and (layer + 1) % interval == 0 for layer in range(count)]
    shared = fields.size("moe_num_shared_experts", least=0) * fields.size("moe_intermediate_size")
    return beside(model, each, sparse, size=shared)


BIAS = f"{LAYER}.mlp.moe_statics.e_score_correction_bias"
ERNIE4_5_MOE = with_experts(
    KEYS,
    _config,
    {"moe.choice_bias": BIAS},
    lambda model: {BIAS: ROW, **by_neighbours(model)},
    renamed=as_dense("shared_experts"),
    outside=frozenset({HEAD, "lm_head.bias"}),
    buffers=re.compile(r"model\.mtp_.*|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)
