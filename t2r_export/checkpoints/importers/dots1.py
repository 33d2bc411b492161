"""dots.llm1 (rednote-hilab 2025, arXiv 2506.05767): Qwen3 with GLM-4.5's experts."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.glm4_moe import OF_EXPERTS, OTHERS, by_sigmoids, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, decoder, sliding_layers, window_of
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **DECODER,
        **OF_EXPERTS,
        "vocab_size": 152064,
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "num_hidden_layers": 62,
        "num_key_value_heads": 32,
        "n_routed_experts": None,
        "n_shared_experts": None,
        "num_experts_per_tok": None,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "attention_bias": False,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
    refused=OTHERS,
    harmless="mlp_bias",
    aliases={"num_local_experts": "n_routed_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    first = fields.size("max_window_layers", least=0)
    layers = sliding_layers(fields, window_of(fields), lambda layer: layer >= first)
    return by_sigmoids(fields, decoder(fields, layers, heads={"qk_norm": True}))


DOTS1 = importer(KEYS, _config)
