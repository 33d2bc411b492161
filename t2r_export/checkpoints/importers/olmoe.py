"""OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): Llama with norms of q and k over all heads, and experts."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import REFUSED, TRAINING, experts, with_experts
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, decoder
from t2r_export.config.model import ModelConfig

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


OLMOE = with_experts(KEYS, _config)
