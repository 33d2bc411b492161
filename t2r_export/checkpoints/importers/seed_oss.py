"""Seed-OSS (ByteDance 2025): Llama with biases of q, k and v, and of the output where its config says so."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer, sliding_layers
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 155136,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "attention_bias": True,
        "attention_out_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
    harmless="pretraining_tp residual_dropout",
)


def _config(fields: Fields) -> ModelConfig:
    return decoder(
        fields,
        sliding_layers(fields, window=None, stated=False),
        qkv_bias=fields.flag("attention_bias"),
        output_bias=fields.flag("attention_out_bias"),
        ffn_bias=fields.flag("mlp_bias"),
    )


SEED_OSS = importer(KEYS, _config)
