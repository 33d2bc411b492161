"""Granite 4.0 (IBM, 2025): Mamba-2 and attention layers, each with a gated feed-forward, beside experts or alone.

Its attention rotates by `position_embedding_type`.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.experts import GATES_AND_UPS, experts, with_moe
from t2r_export.checkpoints.importers.granite import MULTIPLIERS, OURS, UP, multiplied, scales
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, decoder
from t2r_export.checkpoints.importers.mamba2 import PARTS, mixer_names, mixer_transforms, part_of
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig

MIXERS = {"mamba": "mamba2", "linear_attention": "mamba2", "attention": "softmax", "full_attention": "softmax"}
KEYS = keys(
    read={
        **DECODER,
        **PARTS,
        **dict.fromkeys(MULTIPLIERS, 1.0),
        "shared_intermediate_size": 1024,
        "attention_bias": False,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "position_embedding_type": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={"output_router_logits": (None, False)},
    harmless="mamba_chunk_size mlp_bias router_aux_loss_coef",  # for training, or ignored by transformers' class
    aliases={"layers_block_type": "layer_types"},
)


def _config(fields: Fields) -> ModelConfig:
    rotates = fields.choice("position_embedding_type", {"rope": "rope", "nope": ""}, "nope") == "rope"
    bias, count = fields.flag("attention_bias"), _layers(fields)
    mamba2 = None
    if "mamba2" in count:
        inner = fields.number("mamba_expand") * fields.size("hidden_size")
        mamba2 = part_of(fields, inner, fields.number("rms_norm_eps"))
    model = decoder(
        fields,
        tuple(mamba2 if kind == "mamba2" and mamba2 else SoftmaxConfig() for kind in count),
        qkv_bias=bias,
        output_bias=bias,
        rotates=rotates,
        ffn="shared_intermediate_size",
        **scales(fields),
    )
    if fields.get("num_local_experts") == 0:
        for key in ("num_experts_per_tok", "intermediate_size"):
            fields.get(key)  # marks the key as read
        return multiplied(fields, model)
    return multiplied(fields, with_moe(model, experts(fields), size=fields.size("shared_intermediate_size")))


def _layers(fields: Fields) -> list[str]:
    """The kind of each layer's mixer."""
    implied = ["mamba"] * fields.layers("num_hidden_layers")
    return [MIXERS[kind] for kind in fields.kinds("layer_types", MIXERS, implied)]


OURS_WITH_MAMBA: dict[str, Any] = {
    **OURS,
    "mamba2.norm": f"{LAYER}.input_layernorm",
    **mixer_names(f"{LAYER}.mamba"),
}
GRANITE_HYBRID = importer(
    KEYS,
    _config,
    OURS_WITH_MAMBA,
    lambda _: {**mixer_transforms(f"{LAYER}.mamba"), UP: GATES_AND_UPS},
)
