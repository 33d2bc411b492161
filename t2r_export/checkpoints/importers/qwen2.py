"""Qwen2 (Yang et al. 2024, arXiv 2407.10671): Llama with biases of q, k and v; the last layers may be windows."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer, sliding_layers
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

READ: dict[str, Any] = {
    **DECODER,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
KEYS = keys(read=READ, refused=POSITIONS, harmless="attention_bias mlp_bias")  # absent from transformers' class


def layers(fields: Fields) -> tuple[MixerConfig, ...]:
    """The first max_window_layers are softmax, the others windows if use_sliding_window is true."""
    first, used = fields.size("max_window_layers", least=0), fields.flag("use_sliding_window")
    used = used and fields.get("sliding_window") is not None
    window = fields.size("sliding_window") if used else None
    return sliding_layers(fields, window, lambda layer: layer >= first)


def _config(fields: Fields) -> ModelConfig:
    return decoder(fields, layers(fields), qkv_bias=True, output_bias=False)


QWEN2 = importer(KEYS, _config)
