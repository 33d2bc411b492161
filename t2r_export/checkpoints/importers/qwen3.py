"""Qwen3 (Yang et al. 2025, arXiv 2505.09388): Qwen2 with norms of q and k in place of biases."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import decoder, importer
from t2r_export.checkpoints.importers.qwen2 import layers
from t2r_export.config.model import ModelConfig

HEAD_SIZE = 128  # where config.json names none, whatever the width


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    return decoder(fields, qkv_bias=bias, output_bias=bias, qk_norm=True, head_size=HEAD_SIZE, layers=layers(fields))


QWEN3 = importer(_config)
