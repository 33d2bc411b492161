"""StarCoder2 (Lozhkov et al. 2024, arXiv 2402.19173): Llama with layer norms, biases and an ungated feed-forward.

Its layers may have a sliding window.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, POSITIONS, decoder, importer
from t2r_export.checkpoints.importers.mistral import layers
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key != "rms_norm_eps"},
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "sliding_window": None,
        "use_bias": True,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    refused=POSITIONS,
    harmless="embedding_dropout residual_dropout",
)
OURS = {**NAMES, "dense.up": f"{LAYER}.mlp.c_fc", "dense.down": f"{LAYER}.mlp.c_proj"}


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    return decoder(
        fields,
        layers(fields),
        qkv_bias=bias,
        eps="norm_epsilon",
        norm="layer",
        gated_ffn=False,
        ffn_bias=bias,
    )


STARCODER2 = importer(KEYS, _config, OURS)
