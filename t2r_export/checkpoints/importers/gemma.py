"""Gemma (Gemma Team 2024, arXiv 2403.08295): Llama with norms that scale by 1 + w; Gemma 2 (arXiv 2408.00118): such
norms before and after the parts, capped scores and logits, and windows in every other layer; and Gemma 3's text model
(arXiv 2503.19786): norms of q and k in place of capped scores, and windows with their own theta in most layers.

Embeddings are multiplied by the square root of their size, which transformers rounds to the type of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    POSITIONS,
    all_but_each,
    cap,
    decoder,
    family,
    one_plus,
    sliding_layers,
    with_positions,
)
from t2r_export.checkpoints.importers.rotary import LENGTH, rotary_by_kind
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

READ: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
READ2: dict[str, Any] = {
    **{key: value for key, value in READ.items() if key != "hidden_act"},
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
NAMES2 = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm": f"{LAYER}.pre_feedforward_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
}


def decoder_of(fields: Fields, layers: tuple[MixerConfig, ...] | None, activation: str, **others: Any) -> ModelConfig:
    """A decoder with these mixers. Args: layers, others: arguments of `decoder`."""
    scale = fields.size("hidden_size") ** 0.5
    return decoder(fields, layers, activation=activation, embedding_scale=scale, **others)


def second(
    fields: Fields, layers: tuple[MixerConfig, ...], heads: Mapping[str, Any], rotates: bool = True
) -> ModelConfig:
    """A decoder with the options that Gemma 2 and 3 share."""
    return decoder_of(
        fields,
        layers,
        fields.choice("hidden_activation", ACTIVATIONS),
        rotates=rotates,
        heads={"scale": fields.number("query_pre_attn_scalar") ** -0.5, **heads},
        norm_position="both",
        logit_softcap=cap(fields, "final_logit_softcapping"),
    )


def _gemma(fields: Fields) -> ModelConfig:
    # transformers maps gelu to the tanh approximation, with which the models were trained
    activation = fields.choice("hidden_act", {**ACTIVATIONS, "gelu": "gelu_tanh"})
    return decoder_of(fields, None, activation)


def _gemma2(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), lambda layer: layer % 2 == 0)
    return second(fields, layers, {"softcap": cap(fields, "attn_logit_softcapping")})


GEMMA = family(
    {
        **READ,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    _gemma,
    harmless="hidden_activation mlp_bias",  # ignored by transformers' class
    transforms=lambda _: one_plus(NAMES),
)
GEMMA2 = family(
    READ2, _gemma2, NAMES2, lacks="hidden_act", harmless="hidden_act mlp_bias", transforms=lambda _: one_plus(NAMES2)
)


READ3 = {
    **{key: value for key, value in READ2.items() if key != "attn_logit_softcapping"},
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": None,
    "final_logit_softcapping": None,
}


def _gemma3(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), all_but_each(fields, 6))
    model = second(fields, layers, {"qk_norm": True}, rotates=False)
    return with_positions(model, rotary_by_kind(fields, layers, model.heads[0].head_size, "rope_local_base_freq"))


GEMMA3_TEXT = family(
    READ3,
    _gemma3,
    NAMES2,
    lacks=f"{LENGTH} hidden_act",
    refused={**POSITIONS, "attn_logit_softcapping": (None,)},
    harmless="_sliding_window_pattern hidden_act mlp_bias",  # ignored by transformers' class
    transforms=lambda _: one_plus(NAMES2),
)
