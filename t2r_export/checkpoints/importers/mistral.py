"""Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama whose layers see a window of the last tokens, if it has one."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer, sliding_layers
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
    harmless="attention_bias mlp_bias",  # which the class does not have
)


def _config(fields: Fields) -> ModelConfig:
    window = None if fields.get("sliding_window") is None else fields.size("sliding_window")
    return decoder(fields, sliding_layers(fields, window, stated=False), qkv_bias=False, output_bias=False)


MISTRAL = importer(KEYS, _config)
