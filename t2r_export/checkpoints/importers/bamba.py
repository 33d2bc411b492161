"""Bamba (IBM, Princeton, UIUC 2024): Mamba-2 layers, and a few softmax layers that rotate half of each head."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.falcon_h1 import OURS
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, decoder
from t2r_export.checkpoints.importers.mamba2 import PARTS, mixer_transforms, part_of
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig

KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key != "layer_types"},
        **PARTIAL,
        **PARTS,
        "vocab_size": 128000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "attn_layer_indices": None,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={"layers_block_type": (None,)},  # transformers' class computes it
    harmless="mamba_chunk_size num_logits_to_keep z_loss_coefficient",
    aliases={"layer_types": "layers_block_type"},
)


def _config(fields: Fields) -> ModelConfig:
    return decoder(fields, _layers(fields), rope={"partial": 0.5})


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    chosen: Any = fields.get("attn_layer_indices", [])
    if not isinstance(chosen, list) or not all(type(layer) is int for layer in chosen):
        raise fields.wrong("attn_layer_indices", "numbers of layers", chosen)
    inner = fields.number("mamba_expand") * fields.size("hidden_size")
    mamba2 = part_of(fields, inner, fields.number("rms_norm_eps"))
    return tuple(SoftmaxConfig() if n in chosen else mamba2 for n in range(fields.layers("num_hidden_layers")))


BAMBA = importer(
    KEYS, _config, {**OURS, "mamba2.norm": OURS["attention.norm"]}, lambda _: mixer_transforms(f"{LAYER}.mamba")
)
