"""OLMo 2 (OLMo et al. 2025, arXiv 2501.00656): Llama with norms of what the parts give in place of those before them,
and norms of q and k over all heads at once."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder, importer, sliding_layers
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
    harmless="mlp_bias",  # which the class does not have
)
OURS = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
}


def decoder_of(fields: Fields, layers: tuple[MixerConfig, ...], **others: Any) -> ModelConfig:
    """With these mixers. Args: others: arguments of `decoder`."""
    bias, heads = fields.flag("attention_bias"), {"qk_norm": True, "qk_norm_wide": True}
    return decoder(fields, layers, qkv_bias=bias, output_bias=bias, heads=heads, norm_position="after", **others)


OLMO2 = importer(KEYS, lambda fields: decoder_of(fields, sliding_layers(fields, window=None, stated=False)), OURS)
