"""Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama with an optional sliding window.

Ministral 8B (Mistral AI 2024) states for each layer whether it has the window.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer, sliding_layers
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

READ: dict[str, Any] = {
    **DECODER,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HARMLESS = "attention_bias mlp_bias"  # absent from transformers' class
KEYS = keys(read=READ, refused=POSITIONS, harmless=HARMLESS)


def layers(fields: Fields, stated: bool = False) -> tuple[MixerConfig, ...]:
    """Windows in all layers, or in none. Args: stated: as in `sliding_layers`."""
    window = None if fields.get("sliding_window") is None else fields.size("sliding_window")
    return sliding_layers(fields, window, stated=stated)


def _config(fields: Fields, stated: bool) -> ModelConfig:
    return decoder(fields, layers(fields, stated), qkv_bias=False)


MISTRAL = importer(KEYS, lambda fields: _config(fields, stated=False))
MINISTRAL = importer(KEYS, lambda fields: _config(fields, stated=True))
