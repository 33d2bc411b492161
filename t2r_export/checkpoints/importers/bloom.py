"""BLOOM (BigScience Workshop 2022, arXiv 2211.05100): softmax with linear biases, and a layer norm of the embeddings.

Rows of the packed projection are grouped by head: its query, key and value.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.gpt2 import decoder
from t2r_export.checkpoints.importers.gpt_neox import packed_by_heads
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        "vocab_size": 250880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    # transformers omits biases if slow_but_exact is true
    refused={"apply_residual_connection_post_layernorm": (False,), "slow_but_exact": (False,)},
    harmless="hidden_dropout offset_alibi pretraining_tp seq_length skip_bias_add skip_bias_add_qkv",
    aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
)


def _config(fields: Fields) -> ModelConfig:
    layers = (SoftmaxConfig(),) * fields.layers("n_layer")
    return decoder(fields, layers, "n_head", position="alibi", embedding_norm=True)


LAYER = "transformer.h.{}"
PACKED = f"{LAYER}.self_attention.query_key_value"
NAMES = {
    "embedding": "transformer.word_embeddings",
    "embedding_norm": "transformer.word_embeddings_layernorm",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention.norm": f"{LAYER}.input_layernorm",
    **{f"attention.{part}": PACKED for part in "qkv"},
    "attention.o": f"{LAYER}.self_attention.dense",
    "dense.norm": f"{LAYER}.post_attention_layernorm",
    "dense.up": f"{LAYER}.mlp.dense_h_to_4h",
    "dense.down": f"{LAYER}.mlp.dense_4h_to_h",
}


BLOOM = importer(KEYS, _config, NAMES, packed_by_heads(PACKED))
