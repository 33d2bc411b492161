"""Gemma 3's text model (Gemma Team 2025, arXiv 2503.19786): norms before and behind the parts, which scale by 1 + w,
and windows in most layers, whose positions rotate by a theta of their own.

Its embeddings are multiplied by the root of their size, which transformers rounds to the type of the weights.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    LAYER,
    NAMES,
    POSITIONS,
    all_but_each,
    decoder,
    importer,
    sliding_layers,
    with_positions,
)
from t2r_export.checkpoints.importers.rotary import LENGTH, rotary_by_kind
from t2r_export.checkpoints.importers.sources import ONE_PLUS, Transform
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key not in ("hidden_act", LENGTH)},
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": None,
        "final_logit_softcapping": None,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    refused={**POSITIONS, "attn_logit_softcapping": (None,)},
    harmless="_sliding_window_pattern hidden_act mlp_bias",  # which the class passes over
)
OURS = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm": f"{LAYER}.pre_feedforward_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
}


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    layers = sliding_layers(fields, fields.size("sliding_window"), all_but_each(fields, 6))
    cap = None if fields.get("final_logit_softcapping") is None else fields.number("final_logit_softcapping")
    model = decoder(
        fields,
        layers,
        qkv_bias=bias,
        output_bias=bias,
        activation=fields.choice("hidden_activation", ACTIVATIONS),
        rotates=False,
        heads={"qk_norm": True, "scale": fields.number("query_pre_attn_scalar") ** -0.5},
        norm_position="both",
        embedding_scale=fields.size("hidden_size") ** 0.5,
        logit_softcap=cap,
    )
    return with_positions(model, rotary_by_kind(fields, layers, model.heads[0].head_size, "rope_local_base_freq"))


def _transforms(config: ModelConfig) -> dict[str, Transform]:
    norms = [name for name in OURS if "norm" in name]
    return {f"{OURS[name]}.weight": ONE_PLUS for name in norms}


GEMMA3_TEXT = importer(KEYS, _config, OURS, _transforms)
