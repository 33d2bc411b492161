"""InternLM3 (Shanghai AI Laboratory 2025): Llama with other names of the keys of biases.

transformers reads it as Llama, so the output has a bias if q, k and v have one, which requires that the feed-forward
has one too.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, decoder, importer
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        "vocab_size": 128512,
        "intermediate_size": 10240,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
    aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
)


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    if fields.flag("mlp_bias") != bias:
        raise fields.wrong("mlp_bias", "as attention_bias, since transformers has no other", not bias)
    return decoder(fields)


INTERNLM3 = importer(KEYS, _config)
