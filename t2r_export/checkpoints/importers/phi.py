"""Phi-1.5 and Phi-2 (Li et al. 2023, arXiv 2309.05463): attention and feed-forward in parallel after one norm, biases
everywhere, and rotary positions for a part of each head."""

from __future__ import annotations

import dataclasses

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import (
    DECODER,
    LAYER,
    NAMES,
    POSITIONS,
    decoder,
    importer,
    with_one_norm,
)
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.checkpoints.importers.sources import HEAD
from t2r_export.config.model import ModelConfig

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key != "rms_norm_eps"},
        **PARTIAL,
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused=POSITIONS,
    harmless="attention_bias embd_pdrop mlp_bias resid_pdrop",  # two are absent from transformers' class
)
OURS = {
    **NAMES,
    "norm": "model.final_layernorm",
    "attention.o": f"{LAYER}.self_attn.dense",
    "dense.up": f"{LAYER}.mlp.fc1",
    "dense.down": f"{LAYER}.mlp.fc2",
}


def _config(fields: Fields) -> ModelConfig:
    return with_one_norm(
        decoder(
            fields,
            qkv_bias=True,
            eps="layer_norm_eps",
            rope={"partial": 0.5},
            norm="layer",
            parallel=True,
            gated_ffn=False,
            ffn_bias=True,
            head_bias=True,
        )
    )


PHI = dataclasses.replace(importer(KEYS, _config, OURS), outside=frozenset({HEAD, "lm_head.bias"}))
