"""LFM2 with experts (Liquid AI 2025, arXiv 2511.23404): LFM2 whose feed-forwards, except the first, are experts."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import experts, with_experts
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.lfm2 import CONV, NAMES_OF_LFM2, READ, mixers
from t2r_export.checkpoints.importers.llama import LAYER, decoder
from t2r_export.checkpoints.importers.rotary import FULL
from t2r_export.checkpoints.importers.sources import CONVOLUTION
from t2r_export.config.model import ModelConfig
from t2r_export.config.uniform import Dense

KEYS = keys(
    read={
        **{key: value for key, value in READ.items() if not key.startswith("block_") and key != "full_attn_idxs"},
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_hidden_layers": 32,
        "layer_types": None,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    refused={"output_router_logits": (None, False)},
    aliases={"tie_embedding": "tie_word_embeddings", "num_local_experts": "num_experts"},
)
WEIGHTS_EPS = 1e-6  # constant in transformers' class


def _config(fields: Fields) -> ModelConfig:
    layers, normed = mixers(fields, fields.kinds("layer_types", (CONV, FULL))), fields.flag("norm_topk_prob")
    each = experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        normed,
        activation="silu",
        router="sigmoid",
        choice_bias=fields.flag("use_expert_bias"),
        scale=fields.number("routed_scaling_factor"),
        eps=WEIGHTS_EPS if normed else 0.0,
    )
    dense = fields.size("num_dense_layers", least=0)
    return decoder(
        fields,
        layers,
        qkv_bias=False,
        output_bias=False,
        heads={"qk_norm": True},
        eps="norm_eps",
        activation="silu",
        feed_forwards=tuple(Dense() if number < dense else each for number in range(len(layers))),
    )


LFM2_MOE = with_experts(
    KEYS,
    _config,
    {
        **NAMES_OF_LFM2,
        "moe.norm": f"{LAYER}.ffn_norm",
        "moe.choice_bias": f"{LAYER}.feed_forward.expert_bias",
    },
    lambda _: {f"{LAYER}.conv.conv.weight": CONVOLUTION},
    where=f"{LAYER}.feed_forward",
    matrices=("w1", "w3", "w2"),
)
