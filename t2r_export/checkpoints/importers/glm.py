"""GLM-4 (GLM Team 2024, arXiv 2406.12793): Llama with rotation of adjacent dimensions in a part of each head.

GLM-4-0414 (`glm4`) also has norms of the parts' outputs.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    LAYER,
    NAMES,
    POSITIONS,
    by_neighbours,
    decoder,
    importer,
)
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        **PARTIAL,
        "vocab_size": 151552,
        "intermediate_size": 13696,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-07,
        "attention_bias": True,
    },
    refused=POSITIONS,
    harmless="mlp_bias",  # absent from transformers' class
)
OURS = {
    **NAMES,
    **{f"dense.{part}": f"{LAYER}.mlp.gate_up_proj" for part in ("gate", "up")},
    "attention.norm_after": f"{LAYER}.post_self_attn_layernorm",
    "dense.norm_after": f"{LAYER}.post_mlp_layernorm",
}


def _config(fields: Fields, norm_position: str) -> ModelConfig:
    return decoder(fields, output_bias=False, rope={"partial": 0.5}, norm_position=norm_position)


GLM = importer(KEYS, lambda fields: _config(fields, "pre"), OURS, by_neighbours)
GLM4 = importer(KEYS, lambda fields: _config(fields, "both"), OURS, by_neighbours)
