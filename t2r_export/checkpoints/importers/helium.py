"""Helium (Kyutai 2025): Llama with rotation of adjacent dimensions of a head."""

from __future__ import annotations

from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    POSITIONS,
    by_neighbours,
    decoder,
    importer,
)

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


HELIUM = importer(KEYS, lambda fields: decoder(fields, output_bias=False), transforms=by_neighbours)
