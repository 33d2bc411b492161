"""Nemotron-H (NVIDIA 2025, arXiv 2504.03624): a layer is one part: Mamba-2, attention without positions, or a dense
feed-forward; those with experts are refused.

transformers bounds dt by time_step_min in a prompt, whatever time_step_limit is, and not at all in a step. Here steps
bound dt as prompts do.
"""

from __future__ import annotations

import re
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.mamba2 import LAYER, mixer_names, mixer_transforms
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import AttentionConfig, DenseConfig, Mamba2Config, PartConfig
from t2r_export.config.validation import MAX_LAYERS

TYPES = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-"}
KEYS = keys(
    read={
        "vocab_size": 131072,
        "hidden_size": 4096,
        "layers_block_type": None,
        "hybrid_override_pattern": None,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 21504,
        "mlp_hidden_act": "relu2",
        "mlp_bias": False,
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "n_groups": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_min": 0.001,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={"tie_word_embeddings": (False,), "num_nextn_predict_layers": (0,), "output_router_logits": (None, False)},
    # ignored by transformers' class, for experts, or for the initialization of weights
    harmless="""
    attention_bias chunk_size expand mamba_proj_bias mamba_ssm_cache_dtype max_position_embeddings moe_intermediate_size
    moe_latent_size moe_shared_expert_intermediate_size moe_shared_expert_overlap mtp_layers_block_type n_group
    n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok num_hidden_layers num_logits_to_keep
    rescale_prenorm_residual residual_in_fp32 routed_scaling_factor time_step_floor time_step_limit time_step_max
    topk_group use_mamba_kernels
    """,
    aliases={"layer_types": "layers_block_type", "num_local_experts": "n_routed_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    norm = NormConfig("rms", fields.number("layer_norm_epsilon"))
    parts = {"M": _mamba2(fields, norm), "*": _attention(fields, norm), "-": _dense(fields, norm)}
    return ModelConfig(
        vocab_size=fields.size("vocab_size"),
        width=fields.size("hidden_size"),
        layers=tuple(LayerConfig(parts=(parts[kind],)) for kind in _pattern(fields)),
        last_norm=norm,
        tied_head=False,
    )


def _pattern(fields: Fields) -> str:
    """One letter per layer."""
    types, pattern = fields.get("layers_block_type"), fields.get("hybrid_override_pattern")
    key = "hybrid_override_pattern" if types is None else "layers_block_type"
    known = ", ".join(TYPES) if key == "layers_block_type" else "M, * and -"
    found = pattern if types is None else types
    if isinstance(types, list) and all(isinstance(kind, str) for kind in types):
        found = "".join(TYPES.get(kind, "E") for kind in types)
    if not isinstance(found, str) or not re.fullmatch(f"[M*-]{{1,{MAX_LAYERS}}}", found):
        expected = f"1 to {MAX_LAYERS} of {known}, since experts are not supported"
        raise fields.wrong(key, expected, types if types is not None else pattern)
    return found


def _mamba2(fields: Fields, norm: NormConfig) -> PartConfig:
    fields.choice("mamba_hidden_act", {"silu": "silu"})
    groups, bias = fields.size("n_groups"), fields.flag("use_bias")
    return Mamba2Config(
        norm=norm,
        heads=fields.size("mamba_num_heads"),
        head_size=fields.size("mamba_head_dim"),
        state_size=fields.size("ssm_state_size"),
        groups=groups,
        taps=fields.size("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias"),
        bias=bias,
        output_bias=bias,
        least_step=fields.number("time_step_min"),
        norm_groups=groups,
        norm_eps=norm.eps,
    )


def _attention(fields: Fields, norm: NormConfig) -> PartConfig:
    heads = fields.size("num_attention_heads")
    return AttentionConfig(
        norm=norm,
        inside=SoftmaxConfig(),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", heads),
        head_size=fields.size("head_dim"),
        qkv_bias=False,
        output_bias=False,
    )


def _dense(fields: Fields, norm: NormConfig) -> PartConfig:
    activation = fields.choice("mlp_hidden_act", ACTIVATIONS)
    size, bias = fields.size("intermediate_size"), fields.flag("mlp_bias")
    return DenseConfig(norm=norm, size=size, activation=activation, bias=bias)


NAMES: dict[str, Any] = {
    "embedding": "backbone.embeddings",
    "norm": "backbone.norm_f",
    "head": "lm_head",
    **{f"{kind}.norm": f"{LAYER}.norm" for kind in ("mamba2", "attention", "dense")},
    **mixer_names(f"{LAYER}.mixer"),
    **{f"attention.{part}": f"{LAYER}.mixer.{part}_proj" for part in "qkvo"},
    **{f"dense.{part}": f"{LAYER}.mixer.{part}_proj" for part in ("up", "down")},
}

NEMOTRON_H = importer(KEYS, _config, NAMES, lambda _: mixer_transforms(f"{LAYER}.mixer"))
