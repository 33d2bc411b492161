"""OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): Llama with norms of q and k over all heads, and experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.experts import experts, joined, pieces
from t2r_export.checkpoints.importers.keys import Keys, keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder, importer
from t2r_export.checkpoints.importers.sources import Transform
from t2r_export.config.model import ModelConfig

TRAINING = "router_aux_loss_coef"
REFUSED = {**POSITIONS, "output_router_logits": (None, False)}
KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "eos_token_id": 50279,
    },
    refused=REFUSED,
    harmless=TRAINING,
    aliases={"num_local_experts": "num_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    each = experts(fields, "num_experts", renormalize=fields.flag("norm_topk_prob"))
    heads, count = {"qk_norm": True, "qk_norm_wide": True}, fields.layers("num_hidden_layers")
    return decoder(fields, heads=heads, feed_forwards=(each,) * count)


UP, DOWN = f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.down_proj"
EXPERT = f"{LAYER}.mlp.experts.{{expert}}"
OURS = {
    **NAMES,
    "moe.norm": f"{LAYER}.post_attention_layernorm",
    "moe.router": f"{LAYER}.mlp.gate",
    "moe.up": UP,
    "moe.down": DOWN,
}


def with_experts(
    known: Keys,
    config: Callable[[Fields], ModelConfig],
    names: Mapping[str, str] = MappingProxyType({}),
    transforms: Callable[[ModelConfig], Mapping[str, Transform]] = lambda _: {},
) -> Importer:
    """An importer of Llama's names, or of other `names`, with a tensor for each matrix of an expert.

    Args:
        transforms: as in `importer`, for other tensors.
    """
    ups = [f"{EXPERT}.{name}_proj.weight" for name in ("gate", "up")]
    whole = joined({UP: ups, DOWN: [f"{EXPERT}.down_proj.weight"]})
    made = importer(known, config, {**OURS, **names}, lambda model: {**transforms(model), **pieces(UP, DOWN)(model)})
    return dataclasses.replace(made, joined=whole)


OLMOE = with_experts(KEYS, _config)
