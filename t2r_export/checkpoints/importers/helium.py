"""Helium (Kyutai 2025): Llama whose positions rotate neighbours of a head together."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    POSITIONS,
    by_neighbours,
    decoder,
    importer,
    sliding_layers,
)
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 48000,
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
)


def _config(fields: Fields) -> ModelConfig:
    bias, layers = fields.flag("attention_bias"), sliding_layers(fields, window=None, stated=False)
    return decoder(fields, layers, qkv_bias=bias, output_bias=False, ffn_bias=fields.flag("mlp_bias"))


HELIUM = importer(KEYS, _config, transforms=by_neighbours)
