"""Qwen3.5's text model: gated delta nets, and gated attention in every fourth layer; and Qwen3-Next (Qwen Team 2025)
and Qwen3.5 with experts, whose feed-forwards are experts and a shared expert weighted by a sigmoid.

A checkpoint of text and images wraps the same decoder: its config is in text_config, its tensors have a longer prefix.
Vision tensors are ignored, and the draft head (mtp) is a model of its own (draft_heads.py). Norms scale by 1 + w, those
of the delta nets' outputs by w. Rows of q_proj are grouped by head: its query, then its gate. Rows of Qwen3-Next's two
projections in a delta net are grouped by key head: query, key, values and gates; and β and decays.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.draft_heads import NAMES as HEAD_NAMES
from t2r_export.checkpoints.importers.experts import (
    REFUSED,
    TRAINING,
    as_dense,
    experts,
    sparse_layers,
    with_experts,
    with_moe,
)
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.checkpoints.importers.sources import CONVOLUTION, ONE_PLUS, Transform, in_heads, permuted
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import GatedDeltaConfig, PartConfig

READ: dict[str, Any] = {
    **DECODER,
    **PARTIAL,
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "full_attention_interval": None,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
SHAPE = {"attn_output_gate": (None, True), "mlp_only_layers": (None, [])}  # fixed in transformers' class
HARMLESS = "mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings"
OUTSIDE = "image_token_id video_token_id vision_config vision_end_token_id vision_start_token_id"  # for images
DELTA = f"{LAYER}.linear_attn"
NAMES_OF_QWEN = {
    **NAMES,
    **HEAD_NAMES,
    "attention.gate": NAMES["attention.q"],
    "gated_delta.norm": NAMES["attention.norm"],
    **{f"gated_delta.{part}": f"{DELTA}.in_proj_{part}" for part in ("qkv", "z", "b", "a")},
    **{f"gated_delta.{name}": f"{DELTA}.{name}" for name in ("A_log", "dt_bias")},
    "gated_delta.conv": f"{DELTA}.conv1d",
    "gated_delta.norm_weight": f"{DELTA}.norm.weight",
    "gated_delta.o": f"{DELTA}.out_proj",
}
KINDS = ("linear_attention", "full_attention")
OTHERS_OF_MODEL: dict[str, Any] = {
    "buffers": re.compile(r"model\.(mtp|visual)\..*|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    "draft_head": {"num_hidden_layers": 1, "layer_types": [KINDS[1]], "mlp_only_layers": []},
}


def _decoder(fields: Fields, ffn: str = "intermediate_size") -> ModelConfig:
    """Args: ffn: as in `decoder`."""
    return decoder(
        fields,
        _layers(fields),
        heads={"qk_norm": True, "gate": True},
        rope={"partial": 0.25},
        activation=fields.choice("hidden_act", {"silu": "silu", "swish": "silu"}),  # also of the convolution
        ffn=ffn,
    )


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    count, interval = fields.layers("num_hidden_layers"), fields.size("full_attention_interval", 4)
    types = fields.kinds("layer_types", KINDS, [KINDS[(number + 1) % interval == 0] for number in range(count)])
    delta = GatedDeltaConfig(
        heads=fields.size("linear_num_value_heads"),
        key_heads=fields.divisor("linear_num_key_heads", "linear_num_value_heads"),
        key_size=fields.size("linear_key_head_dim"),
        value_size=fields.size("linear_value_head_dim"),
        taps=fields.size("linear_conv_kernel_dim", least=2),
        norm_eps=fields.number("rms_norm_eps"),
    )
    return tuple(delta if kind == KINDS[0] else SoftmaxConfig() for kind in types)


def _transforms(config: ModelConfig) -> dict[str, Transform]:
    """Transforms of norms, convolutions and rows of queries."""
    norms = (
        "norm",
        "attention.norm",
        "dense.norm",
        "attention.q_norm",
        "attention.k_norm",
        "token_norm",
        "hidden_norm",
    )
    found = {f"{NAMES_OF_QWEN[name]}.weight": ONE_PLUS for name in norms}
    found[f"{DELTA}.conv1d.weight"] = CONVOLUTION
    for heads in config.heads:
        of_heads = permuted((heads.heads, 2, -1), (1, 0, 2))
        found |= {f"{NAMES['attention.q']}.{kind}": of_heads for kind in ("weight", "bias")}
    return found


QWEN3_5_TEXT = importer(
    keys(read=READ, refused=SHAPE, harmless=HARMLESS),
    _decoder,
    NAMES_OF_QWEN,
    _transforms,
    **OTHERS_OF_MODEL,
)
QWEN3_5 = dataclasses.replace(
    QWEN3_5_TEXT,
    keys=keys(read=READ, refused=SHAPE, harmless=f"{HARMLESS} {OUTSIDE}"),
    nested="text_config",
    wrapper=("model.language_model.",),
)


OF_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}
NEXT = keys(
    read={
        **READ,
        **OF_EXPERTS,
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 48,
        "num_key_value_heads": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "norm_topk_prob": True,
    },
    refused={**REFUSED, "attn_output_gate": (None, True)},
    harmless=f"{TRAINING} mlp_bias",  # the last is absent from transformers' class
)
READ_OF_EXPERTS = {
    **{key: value for key, value in READ.items() if key != "intermediate_size"},
    **OF_EXPERTS,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
OTHERS: dict[str, Any] = {**SHAPE, **REFUSED, "norm_topk_prob": (None, True), "decoder_sparse_step": (None, 1)}
PASSED_OVER = f"{HARMLESS} {TRAINING} intermediate_size mlp_bias"


def _next(fields: Fields) -> ModelConfig:
    model = _decoder(fields, ffn="intermediate_size")
    return _with_moe(fields, model, sparse_layers(fields), fields.flag("norm_topk_prob"))


def _with_experts(fields: Fields) -> ModelConfig:
    model = _decoder(fields, ffn="shared_expert_intermediate_size")
    return _with_moe(fields, model, [True] * len(model.layers), renormalize=True)


def _with_moe(fields: Fields, model: ModelConfig, sparse: list[bool], renormalize: bool) -> ModelConfig:
    each = experts(fields, "num_experts", "moe_intermediate_size", renormalize)
    return with_moe(model, each, sparse, size=fields.size("shared_expert_intermediate_size"), token_gate=True)


QKVZ, BA = f"{DELTA}.in_proj_qkvz", f"{DELTA}.in_proj_ba"
GATE = {"dense.token_gate": f"{LAYER}.mlp.shared_expert_gate"}
PACKED = {f"gated_delta.{part}": QKVZ for part in ("qkv", "z")} | {f"gated_delta.{part}": BA for part in "ba"}


def _packed(model: ModelConfig) -> dict[str, Transform]:
    """Transforms of both packed projections of the delta nets."""
    parts = (part for layer in model.layers for part in layer.parts)
    delta = next((part for part in parts if isinstance(part, GatedDeltaConfig)), None)
    if delta is None:
        return {}
    ratio = delta.heads // delta.key_heads
    values = ratio * delta.value_size
    sizes = {QKVZ: (delta.key_size, delta.key_size, values, values), BA: (ratio, ratio)}
    return {f"{name}.weight": _of_key_heads(delta.key_heads, each) for name, each in sizes.items()}


def _of_key_heads(heads: int, sizes: tuple[int, ...]) -> Transform:
    """Rows grouped by key head -> the first part of all heads, then the second, …"""
    each = torch.arange(heads * sum(sizes)).unflatten(0, (heads, -1)).split(sizes, dim=1)
    return in_heads(torch.cat([rows.flatten() for rows in each]).tolist())


QWEN3_NEXT = with_experts(
    NEXT,
    _next,
    {**NAMES_OF_QWEN, **PACKED, **GATE},
    lambda model: {**_transforms(model), **_packed(model)},
    renamed=as_dense("shared_expert"),
    **OTHERS_OF_MODEL,
)
QWEN3_5_MOE_TEXT = with_experts(
    keys(read=READ_OF_EXPERTS, refused=OTHERS, harmless=PASSED_OVER),
    _with_experts,
    {**NAMES_OF_QWEN, **GATE},
    _transforms,
    renamed=as_dense("shared_expert"),
    **OTHERS_OF_MODEL,
)
QWEN3_5_MOE = dataclasses.replace(
    QWEN3_5_MOE_TEXT,
    keys=keys(read=READ_OF_EXPERTS, refused=OTHERS, harmless=f"{PASSED_OVER} {OUTSIDE}"),
    nested="text_config",
    wrapper=QWEN3_5.wrapper,
)
