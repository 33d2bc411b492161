"""Olmo-Hybrid (Ai2, 2026): gated delta nets, and softmax in every fourth layer.

Delta layers have norms before their parts, attention layers after them. Attention rotates unless rope_theta is null.
Files store the projections of q, k and v separately, and their convolutions separately or joined.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.sources import CONVOLUTION
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import AttentionConfig, GatedDeltaConfig, PartConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 100352,
        "hidden_size": 3840,
        "num_attention_heads": 30,
        "max_position_embeddings": 65536,
        "attention_bias": False,
        "eos_token_id": 100257,
        "linear_num_key_heads": None,
        "linear_num_value_heads": None,
        "linear_key_head_dim": None,
        "linear_value_head_dim": None,
        "linear_conv_kernel_dim": 4,
        "linear_allow_neg_eigval": True,
    },
    # absent from transformers' class, or for the initialization of weights
    harmless="mlp_bias linear_a_log_max linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min",
)
KINDS = ("linear_attention", "full_attention")
DELTA = f"{LAYER}.linear_attn"
NORM_EPS = 1e-5  # of a delta net's output, independent of rms_norm_eps


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    model = decoder(
        fields,
        _layers(fields),
        qkv_bias=bias,
        output_bias=bias,
        heads={"qk_norm": True, "qk_norm_wide": True},
        rotates=_rotates(fields),
        activation=fields.choice("hidden_act", {"silu": "silu", "swish": "silu"}),  # also of the convolution
    )
    return dataclasses.replace(model, layers=tuple(map(_with_norms_behind, model.layers)))


def _rotates(fields: Fields) -> bool:
    rope = fields.object("rope_parameters") or fields.object("rope_scaling")
    return rope.get("rope_theta", fields.get("rope_theta")) is not None


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    count = fields.layers("num_hidden_layers")
    implied = [KINDS[number % 4 == 3] for number in range(count)]
    implied = implied if KINDS[1] in implied else [*implied[1:], KINDS[1]]
    types, delta = fields.kinds("layer_types", KINDS, implied), _delta(fields)
    return tuple(delta if kind == KINDS[0] else SoftmaxConfig() for kind in types)


def _delta(fields: Fields) -> GatedDeltaConfig:
    given = fields.size("num_attention_heads")
    heads, key_heads = fields.size("linear_num_value_heads", given), fields.size("linear_num_key_heads", given)
    if heads % key_heads:
        raise fields.wrong("linear_num_key_heads", f"a divisor of linear_num_value_heads={heads}", key_heads)
    key_size = fields.size("linear_key_head_dim", int(0.75 * fields.size("hidden_size") / key_heads))
    return GatedDeltaConfig(
        heads=heads,
        key_heads=key_heads,
        key_size=key_size,
        value_size=fields.size("linear_value_head_dim", 2 * key_size),
        taps=fields.size("linear_conv_kernel_dim", least=2),
        norm_eps=NORM_EPS,
        allow_neg_eigval=fields.flag("linear_allow_neg_eigval"),
    )


def _with_norms_behind(layer: LayerConfig) -> LayerConfig:
    if not isinstance(layer.parts[0], AttentionConfig):
        return layer
    return LayerConfig(parts=tuple(dataclasses.replace(part, norm=None, norm_after=part.norm) for part in layer.parts))


OURS: dict[str, Any] = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
    "gated_delta.norm": f"{LAYER}.input_layernorm",
    "gated_delta.qkv": f"{DELTA}.qkv_proj",
    "gated_delta.z": f"{DELTA}.g_proj",
    **{f"gated_delta.{part}": f"{DELTA}.{part}_proj" for part in "abo"},
    **{f"gated_delta.{name}": f"{DELTA}.{name}" for name in ("A_log", "dt_bias")},
    "gated_delta.conv": f"{DELTA}.conv1d",
    "gated_delta.norm_weight": f"{DELTA}.o_norm.weight",
}

OLMO_HYBRID = importer(
    KEYS,
    _config,
    OURS,
    lambda _: {f"{DELTA}.conv1d.weight": CONVOLUTION},
    renamed={
        f"{LAYER}.attention_layer_norm.weight": f"{LAYER}.input_layernorm.weight",
        f"{LAYER}.feedforward_layer_norm.weight": f"{LAYER}.post_attention_layernorm.weight",
    },
    joined=lambda _: {
        f"{DELTA}.{whole}.weight": tuple(f"{DELTA}.{part}_{kind}.weight" for part in "qkv")
        for whole, kind in (("qkv_proj", "proj"), ("conv1d", "conv1d"))
    },
)
