"""Cohere's Command R (Cohere 2024), and Command R7B and A (`cohere2`, arXiv 2504.00698): attention and feed-forward in
parallel after one layer norm without a bias, and rotation of adjacent dimensions.

In the latter most layers are windows, and full-attention layers have no positions.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    LAYER,
    all_but_each,
    by_neighbours,
    decoder,
    importer,
    sliding_layers,
    windows_rotate,
    with_one_norm,
)
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

READ: dict[str, Any] = {
    **{key: value for key, value in DECODER.items() if key != "rms_norm_eps"},
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "bos_token_id": 5,
    "eos_token_id": 255001,
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "rope", "rope_gptj"),
    **dict.fromkeys(("use_parallel_block", "use_gated_activation"), (None, True)),
}
HARMLESS = "mlp_bias"  # absent from transformers' classes


def _decoder(fields: Fields, layers: tuple[MixerConfig, ...] | None = None) -> ModelConfig:
    return with_one_norm(
        decoder(
            fields,
            layers,
            eps="layer_norm_eps",
            norm="layer",
            parallel=True,
            logit_scale=fields.number("logit_scale"),
        )
    )


def _command_a(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), all_but_each(fields, 4))
    return windows_rotate(_decoder(fields, layers))


BIASES = dict.fromkeys((f"{LAYER}.input_layernorm.bias", "model.norm.bias"), 0.0)
COHERE = importer(
    keys(read={**READ, "rope_theta": 5e5}, refused=REFUSED, harmless=HARMLESS),
    _decoder,
    transforms=by_neighbours,
    constants=BIASES,
)
COHERE2 = importer(
    keys(
        read={**READ, "sliding_window": 4096, "sliding_window_pattern": None},
        refused=REFUSED,
        harmless=f"{HARMLESS} _sliding_window_pattern",
    ),
    _command_a,
    transforms=by_neighbours,
    constants=BIASES,
)
