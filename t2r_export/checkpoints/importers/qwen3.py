"""Qwen3 (Yang et al. 2025, arXiv 2505.09388): Qwen2 with norms of q and k in place of biases."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import POSITIONS, decoder, importer
from t2r_export.checkpoints.importers.qwen2 import READ, layers
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={**READ, "head_dim": 128, "attention_bias": False},
    refused=POSITIONS,
    harmless="mlp_bias",  # absent from transformers' class
)


def _config(fields: Fields) -> ModelConfig:
    return decoder(fields, layers(fields), heads={"qk_norm": True})


QWEN3 = importer(KEYS, _config)
