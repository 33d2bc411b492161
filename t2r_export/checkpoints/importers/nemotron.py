"""Nemotron-4 and Minitron (Parmar et al. 2024, arXiv 2402.16819): layer norms that scale by 1 + w, an ungated
feed-forward with squared ReLU, and rotary positions for a part of each head."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.gemma import one_plus
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, NAMES, POSITIONS, decoder, importer
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key != "rms_norm_eps"},
        **PARTIAL,
        "vocab_size": 256000,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_attention_heads": 48,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    refused=POSITIONS,
)


def _config(fields: Fields) -> ModelConfig:
    return decoder(fields, eps="norm_eps", rope={"partial": 0.5}, norm="layer", gated_ffn=False)


NEMOTRON = importer(KEYS, _config, transforms=lambda _: one_plus(NAMES))
