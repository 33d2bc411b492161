"""Granite with windows (IBM 2026): softmax in every fourth layer and windows in the others, a trained logit in each
head's softmax, and a theta per layer, where 0 means no rotation."""

from __future__ import annotations

import dataclasses

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.granite import MULTIPLIERS, last_matrices, scales
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    decoder,
    family,
    sliding_layers,
    window_of,
    with_positions,
)
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.validation import finite

READ = {
    **dict.fromkeys(MULTIPLIERS, 1.0),
    "vocab_size": 100352,
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": 128,
    "layer_rope_theta": None,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
}


def _config(fields: Fields) -> ModelConfig:
    others = scales(fields)
    model = decoder(
        fields,
        sliding_layers(fields, window_of(fields), lambda layer: layer % 4 != 0),
        **{**others, "heads": {**others["heads"], "sink": True}},
    )
    return with_positions(model, _positions(fields, model))


def _positions(fields: Fields, model: ModelConfig) -> list[RotaryConfig | None]:
    """The model's positions with each layer's own theta."""
    rotary, count = model.heads[0].rotary, len(model.layers)
    assert rotary is not None
    thetas = fields.get("layer_rope_theta", [rotary.theta] * count)
    if not isinstance(thetas, list) or len(thetas) != count or not all(finite(one) and one >= 0 for one in thetas):
        raise fields.wrong("layer_rope_theta", f"{count} numbers of at least 0", thetas)
    return [dataclasses.replace(rotary, theta=float(theta)) if theta else None for theta in thetas]


GRANITE_SWA = family(
    READ,
    _config,
    {**NAMES, "attention.inner.sink": f"{LAYER}.self_attn.sinks"},
    factors=last_matrices("self_attn.o_proj", "mlp.down_proj"),
)
