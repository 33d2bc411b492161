"""Qwen3 with experts (Yang et al. 2025, arXiv 2505.09388): Qwen3 of which all or some layers have experts."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import REFUSED, TRAINING, experts, sparse_layers, with_experts
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, decoder, sliding_layers, window_of
from t2r_export.config.model import ModelConfig
from t2r_export.config.uniform import Dense

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 768,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    refused=REFUSED,
    harmless=f"{TRAINING} max_window_layers mlp_bias",  # the last two are absent from transformers' class
    aliases={"num_experts": "num_local_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, window_of(fields), stated=False)
    each = experts(fields, size="moe_intermediate_size", renormalize=fields.flag("norm_topk_prob"))
    feed_forwards = tuple(each if own else Dense() for own in sparse_layers(fields))
    return decoder(fields, layers, heads={"qk_norm": True}, feed_forwards=feed_forwards)


QWEN3_MOE = with_experts(KEYS, _config)
