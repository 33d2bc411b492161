"""OLMo 3 (Team OLMo 2025, arXiv 2512.13961): OLMo 2 with windows in most layers, whose positions are unscaled."""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, POSITIONS, importer, sliding_layers, with_positions
from t2r_export.checkpoints.importers.olmo2 import OURS, decoder_of
from t2r_export.checkpoints.importers.rotary import LENGTH, rotary_by_kind
from t2r_export.config.model import ModelConfig

THETA = 5e5
KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key != LENGTH},
        "vocab_size": 50304,
        "rms_norm_eps": 1e-5,
        "rope_theta": THETA,
        "attention_bias": False,
        "sliding_window": 4096,
        "eos_token_id": 50279,
    },
    refused=POSITIONS,
    harmless="mlp_bias",  # absent from transformers' class
)


def _config(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), lambda layer: (layer + 1) % 4 != 0)
    model = decoder_of(fields, layers, rotates=False)
    # transformers uses a rope_theta outside the rotary parameters for full layers only
    return with_positions(model, rotary_by_kind(fields, layers, model.heads[0].head_size, THETA))


OLMO3 = importer(KEYS, _config, OURS)
