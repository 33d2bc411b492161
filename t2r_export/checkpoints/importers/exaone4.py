"""EXAONE 4 (LG AI Research 2025, arXiv 2507.11407): norms of the parts' outputs, and of the heads of q and k.

In models with windows, full-attention layers have no positions.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    POSITIONS,
    all_but_each,
    decoder,
    importer,
    sliding_layers,
    windows_rotate,
)
from t2r_export.checkpoints.importers.olmo2 import OURS
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 102400,
        "intermediate_size": 16384,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
    harmless="attention_bias mlp_bias",  # absent from transformers' class
)


def _config(fields: Fields) -> ModelConfig:
    window = None if fields.get("sliding_window") is None else fields.size("sliding_window")
    layers = sliding_layers(fields, window, all_but_each(fields))
    heads = {"qk_norm": True}
    model = decoder(fields, layers, qkv_bias=False, heads=heads, norm_position="after")
    return model if window is None else windows_rotate(model)


EXAONE4 = importer(KEYS, _config, OURS)
