"""AFM (Arcee AI 2025): Llama with a feed-forward of squared relu, without a gate."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer, sliding_layers
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    refused=POSITIONS,
)


def _config(fields: Fields) -> ModelConfig:
    bias, layers = fields.flag("attention_bias"), sliding_layers(fields, window=None, stated=False)
    ffn_bias = fields.flag("mlp_bias")
    return decoder(fields, layers, qkv_bias=bias, output_bias=bias, gated_ffn=False, ffn_bias=ffn_bias)


ARCEE = importer(KEYS, _config)
