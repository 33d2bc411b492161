"""Granite 3 with experts (IBM 2024): Granite whose feed-forwards are mixtures of experts."""

from __future__ import annotations

import dataclasses

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import GATES_AND_UPS, experts
from t2r_export.checkpoints.importers.granite import MULTIPLIERS, last_matrices, scales
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder, importer, sliding_layers
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        **dict.fromkeys(MULTIPLIERS, 1.0),
        "attention_bias": False,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={**POSITIONS, "output_router_logits": (None, False)},
    harmless="router_aux_loss_coef",
)


def _config(fields: Fields) -> ModelConfig:
    bias, layers = fields.flag("attention_bias"), sliding_layers(fields, window=None, stated=False)
    feed_forwards = (experts(fields),) * len(layers)
    return decoder(fields, layers, qkv_bias=bias, output_bias=bias, feed_forwards=feed_forwards, **scales(fields))


EXPERTS = f"{LAYER}.block_sparse_moe"
UP, DOWN = f"{EXPERTS}.input_linear.weight", f"{EXPERTS}.output_linear.weight"
OURS = {
    "moe.norm": f"{LAYER}.post_attention_layernorm",
    "moe.router": f"{EXPERTS}.router.layer",
    "moe.up": UP,
    "moe.down": DOWN,
}
GRANITE_MOE = dataclasses.replace(
    importer(KEYS, _config, {**NAMES, **OURS}, lambda _: {UP: GATES_AND_UPS}),
    factors=last_matrices("self_attn.o_proj", "block_sparse_moe.output_linear"),
)
