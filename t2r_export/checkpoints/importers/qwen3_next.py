"""Qwen3-Next (Qwen Team 2025) and Qwen3.5 with experts: Qwen3.5's layers, whose feed-forwards are experts, with a
shared expert weighted by a sigmoid.

Rows of Qwen3-Next's two projections in a delta net are grouped by key head: query, key, values and gates; and β and
decays.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import (
    REFUSED,
    TRAINING,
    as_dense,
    beside,
    experts,
    sparse_layers,
    with_experts,
)
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import LAYER
from t2r_export.checkpoints.importers.qwen3_5 import (
    DELTA,
    HARMLESS,
    NAMES_OF_QWEN,
    OUTSIDE,
    QWEN3_5,
    QWEN3_5_TEXT,
    SHAPE,
    decoder_of,
    transforms,
)
from t2r_export.checkpoints.importers.qwen3_5 import READ as WITHOUT
from t2r_export.checkpoints.importers.sources import Transform, in_heads
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import GatedDeltaConfig

OF_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}
NEXT = keys(
    read={
        **WITHOUT,
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
READ = {
    **{key: value for key, value in WITHOUT.items() if key != "intermediate_size"},
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
    model = decoder_of(fields, ffn="intermediate_size")
    return _beside(fields, model, sparse_layers(fields), fields.flag("norm_topk_prob"))


def _config(fields: Fields) -> ModelConfig:
    model = decoder_of(fields, ffn="shared_expert_intermediate_size")
    return _beside(fields, model, [True] * len(model.layers), renormalize=True)


def _beside(fields: Fields, model: ModelConfig, sparse: list[bool], renormalize: bool) -> ModelConfig:
    each = experts(fields, "num_experts", "moe_intermediate_size", renormalize)
    return beside(model, each, sparse, size=fields.size("shared_expert_intermediate_size"), token_gate=True)


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
    lambda model: {**transforms(model), **_packed(model)},
    renamed=as_dense("shared_expert"),
    buffers=QWEN3_5_TEXT.buffers,
)
QWEN3_5_MOE_TEXT = with_experts(
    keys(read=READ, refused=OTHERS, harmless=PASSED_OVER),
    _config,
    {**NAMES_OF_QWEN, **GATE},
    transforms,
    renamed=as_dense("shared_expert"),
    buffers=QWEN3_5_TEXT.buffers,
)
QWEN3_5_MOE = dataclasses.replace(
    QWEN3_5_MOE_TEXT,
    keys=keys(read=READ, refused=OTHERS, harmless=f"{PASSED_OVER} {OUTSIDE}"),
    nested="text_config",
    wrapper=QWEN3_5.wrapper,
)
