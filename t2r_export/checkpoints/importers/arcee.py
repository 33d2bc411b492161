"""AFM (Arcee AI 2025): Llama with an ungated feed-forward with squared ReLU."""

from __future__ import annotations

from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer

KEYS = keys(
    read={
        **DECODER,
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    refused=POSITIONS,
)


ARCEE = importer(KEYS, lambda fields: decoder(fields, gated_ffn=False))
