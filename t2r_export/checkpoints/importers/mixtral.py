"""Mixtral (Jiang et al. 2024, arXiv 2401.04088): Mistral whose feed-forwards are mixtures of experts."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import experts, with_experts
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, POSITIONS, decoder
from t2r_export.checkpoints.importers.llamas import MISTRAL, NO_BIASES, windows
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        **MISTRAL,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    refused={**POSITIONS, "output_router_logits": (None, False)},
    harmless=f"{NO_BIASES} router_aux_loss_coef router_jitter_noise",
    aliases={"num_experts": "num_local_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    mixers = windows(fields)
    feed_forwards = (experts(fields),) * len(mixers)
    return decoder(fields, mixers, qkv_bias=False, output_bias=False, feed_forwards=feed_forwards)


MIXTRAL = with_experts(KEYS, _config, where=f"{LAYER}.block_sparse_moe", matrices=("w1", "w3", "w2"))
