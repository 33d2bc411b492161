"""Falcon-H1 (TII 2025, arXiv 2507.22448): attention and Mamba-2 in parallel after one norm, and a feed-forward; and
Bamba.

Falcon-H1's config has multipliers of a part's input, projection rows and output. They are folded into the weights here,
except the scales of embeddings and logits, which may share a table.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.mamba2 import PARTS, mixer_names, mixer_transforms, part_of
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.validation import finite

ROWS = 5  # groups of rows in Mamba-2's input projection: z, x, B, C and dt
KEYS = keys(
    read={
        **{key: value for key, value in DECODER.items() if key != "layer_types"},
        **PARTS,
        "vocab_size": 128000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        "mamba_d_ssm": 1024,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "ssm_multipliers": None,
        "mlp_multipliers": None,
        **{f"{name}_multiplier": 1.0 for name in ("embedding", "lm_head", "key", "attention_in", "attention_out")},
        **{f"{name}_multiplier": 1.0 for name in ("ssm_in", "ssm_out")},
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={"layers_block_type": (None,)},
    harmless="mamba_chunk_size num_logits_to_keep",
    aliases={"layer_types": "layers_block_type"},
)


def _falcon_h1(fields: Fields) -> ModelConfig:
    mamba2 = part_of(
        fields,
        _inner(fields),
        fields.number("rms_norm_eps"),
        output_bias=fields.flag("projectors_bias"),
        norm_before_gate=fields.flag("mamba_norm_before_gate"),
        **({} if fields.flag("mamba_rms_norm") else {"norm_groups": 0}),
        beside=True,
    )
    bias = fields.flag("attention_bias")
    model = decoder(
        fields,
        (SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=fields.flag("mlp_bias"),
        embedding_scale=fields.number("embedding_multiplier"),
        logit_scale=fields.number("lm_head_multiplier"),
    )
    layers = [LayerConfig(parts=(layer.parts[0], mamba2, *layer.parts[1:])) for layer in model.layers]
    return dataclasses.replace(model, layers=tuple(layers))


def _inner(fields: Fields) -> int:
    """Channels of a Mamba-2 part."""
    expanded = int(fields.number("mamba_expand") * fields.size("hidden_size"))
    return expanded if fields.get("mamba_d_ssm") is None else fields.size("mamba_d_ssm")


def _factors(fields: Fields) -> dict[str, float | Tensor]:
    by = {name: fields.number(f"{name}_multiplier") for name in ("key", "attention_in", "attention_out")}
    ssm_in, ssm_out = fields.number("ssm_in_multiplier"), fields.number("ssm_out_multiplier")
    gate, down = _numbers(fields, "mlp_multipliers", 2)
    state = fields.size("mamba_n_groups") * fields.size("mamba_d_state")
    sizes = torch.tensor([_inner(fields)] * 2 + [state] * 2 + [fields.size("mamba_n_heads")])
    rows = torch.tensor(_numbers(fields, "ssm_multipliers", ROWS)).repeat_interleave(sizes)
    both: dict[str, float] = {
        "mamba.out_proj": ssm_out,
        "self_attn.o_proj": by["attention_out"],
        "feed_forward.gate_proj": gate,
        "feed_forward.down_proj": down,
    }
    found: dict[str, float | Tensor] = {
        "mamba.in_proj.weight": rows[:, None] * ssm_in,
        "mamba.in_proj.bias": rows,
        **{f"self_attn.{part}_proj.weight": by["attention_in"] for part in "qv"},
        "self_attn.k_proj.weight": by["attention_in"] * by["key"],
        "self_attn.k_proj.bias": by["key"],
        **{f"{name}.{kind}": factor for name, factor in both.items() for kind in ("weight", "bias")},
    }
    return {f"{LAYER}.{name}": factor for name, factor in found.items()}


def _numbers(fields: Fields, key: str, count: int) -> list[float]:
    """Read `count` multipliers."""
    values = fields.get(key, [1.0] * count)
    if not isinstance(values, list) or len(values) != count or not all(map(finite, values)):
        raise fields.wrong(key, f"{count} finite numbers", values)
    return [float(value) for value in values]


OURS: dict[str, Any] = {
    **NAMES,
    "norm": "model.final_layernorm",
    **mixer_names(f"{LAYER}.mamba"),
    "dense.norm": f"{LAYER}.pre_ff_layernorm",
    **{f"dense.{part}": f"{LAYER}.feed_forward.{part}_proj" for part in ("gate", "up", "down")},
}

FALCON_H1 = importer(
    KEYS,
    _falcon_h1,
    OURS,
    lambda _: mixer_transforms(f"{LAYER}.mamba"),
    buffers=re.compile(r"model\.layers\.\d+\.mamba\.mup_vector"),
    factors=_factors,
)


# Bamba (IBM, Princeton, UIUC 2024): Mamba-2 layers, and a few softmax layers that rotate half of each head
KEYS_OF_BAMBA = keys(
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


def _bamba(fields: Fields) -> ModelConfig:
    return decoder(fields, _layers(fields), rope={"partial": 0.5})


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    chosen: Any = fields.get("attn_layer_indices", [])
    if not isinstance(chosen, list) or not all(type(layer) is int for layer in chosen):
        raise fields.wrong("attn_layer_indices", "numbers of layers", chosen)
    inner = fields.number("mamba_expand") * fields.size("hidden_size")
    mamba2 = part_of(fields, inner, fields.number("rms_norm_eps"))
    return tuple(SoftmaxConfig() if n in chosen else mamba2 for n in range(fields.layers("num_hidden_layers")))


BAMBA = importer(
    KEYS_OF_BAMBA, _bamba, {**OURS, "mamba2.norm": OURS["attention.norm"]}, lambda _: mixer_transforms(f"{LAYER}.mamba")
)
