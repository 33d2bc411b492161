"""Ministral 3 (Mistral AI 2025): Mistral with queries scaled by their position, as in Llama 4."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import decoder, family, head_sizes
from t2r_export.checkpoints.importers.llamas import MISTRAL, NO_BIASES, windows
from t2r_export.checkpoints.importers.rotary import LENGTH, assume, rotary
from t2r_export.config.attention import PositionScale
from t2r_export.config.model import ModelConfig

FACTOR = "llama_4_scaling_beta"
# defaults of transformers' class
ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, LENGTH: 16384, "mscale_all_dim": 1.0, "mscale": 1.0}
READ = {
    **MISTRAL,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}


def _config(fields: Fields) -> ModelConfig:
    assume(fields, {**ROPE, FACTOR: 0.1})
    rope: dict[str, Any] = {"others": (FACTOR, "max_position_embeddings")}
    scaling = rotary(fields, head_sizes(fields)[2], **rope).scaling
    said = Fields(fields.get("rope_parameters", fields.get("rope_scaling")), f"the rotary parameters of {fields.where}")
    length = getattr(scaling, "original_max_positions", None) or said.size(LENGTH)
    scales = said.get(FACTOR) != 0  # 0 in Devstral 2
    scale = PositionScale(factor=said.number(FACTOR), length=length) if scales else None
    return decoder(fields, windows(fields), qkv_bias=False, heads={"position_scale": scale}, rope=rope)


MINISTRAL3 = family(READ, _config, harmless=NO_BIASES)
