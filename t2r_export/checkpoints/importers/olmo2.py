"""OLMo 2 (OLMo et al. 2025, arXiv 2501.00656): Llama with norms after the parts instead of before them, and
norms of q and k over all heads at once."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder, importer
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 50304,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "eos_token_id": 50279,
    },
    refused=POSITIONS,
    harmless="mlp_bias",  # absent from transformers' class
)
OURS = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
}


def decoder_of(fields: Fields, layers: tuple[MixerConfig, ...] | None = None, **others: Any) -> ModelConfig:
    """A decoder with these mixers. Args: layers, others: arguments of `decoder`."""
    return decoder(fields, layers, heads={"qk_norm": True, "qk_norm_wide": True}, norm_position="after", **others)


OLMO2 = importer(KEYS, decoder_of, OURS)
