"""Seed-OSS (ByteDance 2025): Llama with biases of q, k and v, and optionally of the output."""

from __future__ import annotations

from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer

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


SEED_OSS = importer(KEYS, lambda fields: decoder(fields, output_bias=fields.flag("attention_out_bias")))
