"""Mistral (Jiang et al. 2023, arXiv 2310.06825): Llama whose layers see a window of the last tokens, if it has one."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import decoder, importer, sliding_layers
from t2r_export.config.model import ModelConfig


def _config(fields: Fields) -> ModelConfig:
    windows = fields.get("sliding_window") is not None
    return decoder(fields, qkv_bias=False, output_bias=False, layers=sliding_layers(fields, lambda layer: windows))


MISTRAL = importer(_config)
