"""Qwen2 (Yang et al. 2024, arXiv 2407.10671): Llama with biases of q, k and v; the last layers may be windows."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import decoder, importer, sliding_layers
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig


def layers(fields: Fields) -> tuple[MixerConfig, ...]:
    """The first max_window_layers are softmax, the others windows, where use_sliding_window says so."""
    first, used = fields.size("max_window_layers", 28), fields.flag("use_sliding_window", False)
    if not used:
        fields.get("sliding_window")  # of no meaning then
    return sliding_layers(fields, lambda layer: used and layer >= first)


def _config(fields: Fields) -> ModelConfig:
    return decoder(fields, qkv_bias=True, output_bias=False, layers=layers(fields))


QWEN2 = importer(_config)
