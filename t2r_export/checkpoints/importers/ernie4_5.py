"""ERNIE 4.5 without experts (Baidu 2025): Llama with rotation of adjacent dimensions of a head."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    POSITIONS,
    by_neighbours,
    decoder,
    importer,
)
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 103424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "use_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
    harmless="attention_bias mlp_bias",  # absent from transformers' class
)


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    return decoder(fields, qkv_bias=bias, ffn_bias=bias)


ERNIE4_5 = importer(KEYS, _config, transforms=by_neighbours)
