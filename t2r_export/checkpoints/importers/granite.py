"""Granite 3 (IBM 2024): Llama with multipliers of embeddings, scores, parts and logits; `granitemoe` has experts as
feed-forwards, `granitemoeshared` also a shared expert.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import GATES_AND_UPS, REFUSED, TRAINING, experts, with_moe
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    decoder,
    family,
    sliding_layers,
    window_of,
    with_positions,
)
from t2r_export.config.layer import LayerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.validation import finite

MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
READ = {
    **dict.fromkeys(MULTIPLIERS, 1.0),
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def scales(fields: Fields) -> dict[str, Any]:
    """The multipliers as arguments of `decoder`, except that of parts."""
    return {
        "heads": {"scale": fields.number("attention_multiplier")},
        "embedding_scale": fields.number("embedding_multiplier"),
        "logit_scale": 1 / fields.number("logits_scaling"),
    }


def multiplied(fields: Fields, model: ModelConfig) -> ModelConfig:
    """The model with residual_multiplier after each part: multiplied into a matrix, it would round a file's blocks."""
    number = fields.number("residual_multiplier")
    layers = (tuple(replace(part, multiplier=number) for part in layer.parts) for layer in model.layers)
    return replace(model, layers=tuple(LayerConfig(parts=parts) for parts in layers))


GRANITE = family(READ, lambda fields: multiplied(fields, decoder(fields, **scales(fields))))


EXPERTS = f"{LAYER}.block_sparse_moe"
UP = f"{EXPERTS}.input_linear.weight"
OURS = {
    **NAMES,
    "moe.norm": f"{LAYER}.post_attention_layernorm",
    "moe.router": f"{EXPERTS}.router.layer",
    "moe.up": UP,
    "moe.down": f"{EXPERTS}.output_linear.weight",
    **dict.fromkeys(("dense.gate", "dense.up"), f"{LAYER}.shared_mlp.input_linear"),
    "dense.down": f"{LAYER}.shared_mlp.output_linear",
}


def _with_experts(fields: Fields) -> ModelConfig:
    key = "shared_intermediate_size"
    shared = fields.size(key, least=0) if fields.reads(key) else 0
    return multiplied(fields, with_moe(decoder(fields, **scales(fields)), experts(fields), size=shared))


GRANITE_MOE, GRANITE_MOE_SHARED = (
    family(
        {
            **{key: value for key, value in READ.items() if key != "mlp_bias"},
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            **more,
        },
        _with_experts,
        OURS,
        refused=REFUSED,
        harmless=TRAINING,
        transforms=lambda _: {UP: GATES_AND_UPS},
    )
    for more in ({}, {"shared_intermediate_size": 0})
)


# Granite with windows (IBM 2026): softmax in every fourth layer and windows in the others, a trained logit in each
# head's softmax, and a theta per layer, where 0 means no rotation
READ_OF_WINDOWS = {
    **READ,
    "vocab_size": 100352,
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "sliding_window": 128,
    "layer_rope_theta": None,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
}


def _with_windows(fields: Fields) -> ModelConfig:
    others = scales(fields)
    model = decoder(
        fields,
        sliding_layers(fields, window_of(fields), lambda layer: layer % 4 != 0),
        **{**others, "heads": {**others["heads"], "sink": True}},
    )
    return multiplied(fields, with_positions(model, _positions(fields, model)))


def _positions(fields: Fields, model: ModelConfig) -> list[RotaryConfig | None]:
    """The model's positions with each layer's own theta."""
    rotary, count = model.heads[0].rotary, len(model.layers)
    assert rotary is not None
    thetas = fields.get("layer_rope_theta", [rotary.theta] * count)
    if not isinstance(thetas, list) or len(thetas) != count or not all(finite(one) and one >= 0 for one in thetas):
        raise fields.wrong("layer_rope_theta", f"{count} numbers of at least 0", thetas)
    return [replace(rotary, theta=float(theta)) if theta else None for theta in thetas]


GRANITE_SWA = family(READ_OF_WINDOWS, _with_windows, {**NAMES, "attention.inner.sink": f"{LAYER}.self_attn.sinks"})
