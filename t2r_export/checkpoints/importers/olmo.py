"""OLMo (Groeneveld et al. 2024, arXiv 2402.00838): Llama with layer norms that have no weights."""

from __future__ import annotations

from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, NAMES, POSITIONS, decoder, importer

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key not in ("rms_norm_eps", "head_dim")},
        "vocab_size": 50304,
        "attention_bias": False,
        "eos_token_id": 50279,
    },
    refused={**POSITIONS, "head_dim": (None,)},
    harmless="mlp_bias rms_norm_eps",  # absent from transformers' class
)
NORM_EPS = 1e-5  # constant in transformers' class
NORMS = [theirs for ours, theirs in NAMES.items() if "norm" in ours]
CONSTANTS = {**{f"{name}.weight": 1.0 for name in NORMS}, **{f"{name}.bias": 0.0 for name in NORMS}}


OLMO = importer(KEYS, lambda fields: decoder(fields, norm="layer", norm_eps=NORM_EPS), constants=CONSTANTS)
