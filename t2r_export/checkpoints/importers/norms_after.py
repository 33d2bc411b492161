"""Families that are Llama with norms of the parts' outputs, and GLM-4, whose second version has them.

Keys that are only harmless in some of them (attention_bias, mlp_bias) are absent from transformers' class.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    all_but_each,
    by_neighbours,
    decoder,
    family,
    sliding_layers,
    window_of,
    windows_rotate,
    with_positions,
)
from t2r_export.checkpoints.importers.llamas import GATES_AND_UPS, NO_BIASES
from t2r_export.checkpoints.importers.rotary import LENGTH, PARTIAL, rotary_by_kind
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

GLM: dict[str, Any] = {
    **PARTIAL,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
}
OURS = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
}
OF_GLM = {
    **NAMES,
    **GATES_AND_UPS,
    "attention.norm_after": f"{LAYER}.post_self_attn_layernorm",
    "dense.norm_after": f"{LAYER}.post_mlp_layernorm",
}
OLMO3_THETA = 5e5


def _exaone4(fields: Fields) -> ModelConfig:
    window = window_of(fields)
    layers = sliding_layers(fields, window, all_but_each(fields))
    model = decoder(fields, layers, qkv_bias=False, heads={"qk_norm": True}, norm_position="after")
    return model if window is None else windows_rotate(model)


def _glm(fields: Fields, norm_position: str) -> ModelConfig:
    return decoder(fields, output_bias=False, rope={"partial": 0.5}, norm_position=norm_position)


def _olmo2(fields: Fields, layers: tuple[MixerConfig, ...] | None = None, rotates: bool = True) -> ModelConfig:
    heads = {"qk_norm": True, "qk_norm_wide": True}
    return decoder(fields, layers, heads=heads, norm_position="after", rotates=rotates)


def _olmo3(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), lambda layer: (layer + 1) % 4 != 0)
    model = _olmo2(fields, layers, rotates=False)
    # transformers uses a rope_theta outside the rotary parameters for full layers only
    return with_positions(model, rotary_by_kind(fields, layers, model.heads[0].head_size, OLMO3_THETA))


NORMS_AFTER: dict[str, Importer] = {
    # EXAONE 4 (LG AI Research 2025, arXiv 2507.11407): norms of the parts' outputs, and of the heads of q and k; in
    # models with windows, full-attention layers have no positions
    "exaone4": family(
        {
            "vocab_size": 102400,
            "intermediate_size": 16384,
            "num_key_value_heads": 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        _exaone4,
        OURS,
        harmless=NO_BIASES,
    ),
    # GLM-4 (GLM Team 2024, arXiv 2406.12793): rotation of adjacent dimensions in a part of each head
    "glm": family(GLM, lambda fields: _glm(fields, "pre"), OF_GLM, harmless="mlp_bias", transforms=by_neighbours),
    # GLM-4-0414: GLM-4 with norms of the parts' outputs
    "glm4": family(GLM, lambda fields: _glm(fields, "both"), OF_GLM, harmless="mlp_bias", transforms=by_neighbours),
    # OLMo 2 (OLMo et al. 2025, arXiv 2501.00656): norms after the parts instead of before them, and norms of q and k
    # over all heads at once
    "olmo2": family(
        {"vocab_size": 50304, "rms_norm_eps": 1e-5, "attention_bias": False, "eos_token_id": 50279},
        _olmo2,
        OURS,
        harmless="mlp_bias",
    ),
    # OLMo 3 (Team OLMo 2025, arXiv 2512.13961): OLMo 2 with windows in most layers, whose positions are unscaled
    "olmo3": family(
        {
            "vocab_size": 50304,
            "rms_norm_eps": 1e-5,
            "rope_theta": OLMO3_THETA,
            "attention_bias": False,
            "sliding_window": 4096,
            "eos_token_id": 50279,
        },
        _olmo3,
        OURS,
        lacks=LENGTH,
        harmless="mlp_bias",
    ),
}
