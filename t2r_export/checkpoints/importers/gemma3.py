"""Gemma 3's text model (Gemma Team 2025, arXiv 2503.19786): Gemma 2 with norms of q and k in place of capped scores,
and windows with their own rotary theta in most layers."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.gemma import NAMES2, READ2, second
from t2r_export.checkpoints.importers.llama import (
    POSITIONS,
    all_but_each,
    family,
    one_plus,
    sliding_layers,
    with_positions,
)
from t2r_export.checkpoints.importers.rotary import LENGTH, rotary_by_kind
from t2r_export.config.model import ModelConfig

READ = {
    **{key: value for key, value in READ2.items() if key != "attn_logit_softcapping"},
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": None,
    "final_logit_softcapping": None,
}


def _config(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), all_but_each(fields, 6))
    model = second(fields, layers, {"qk_norm": True}, rotates=False)
    return with_positions(model, rotary_by_kind(fields, layers, model.heads[0].head_size, "rope_local_base_freq"))


GEMMA3_TEXT = family(
    READ,
    _config,
    NAMES2,
    lacks=f"{LENGTH} hidden_act",
    refused={**POSITIONS, "attn_logit_softcapping": (None,)},
    harmless="_sliding_window_pattern hidden_act mlp_bias",  # ignored by transformers' class
    transforms=lambda _: one_plus(NAMES2),
)
