"""Jamba (Lieber et al. 2024, arXiv 2403.19887): Mamba layers, every eighth softmax without positions, and experts."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.experts import experts, with_experts, with_moe
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.mamba import mixer_names, mixer_transforms, step_rank
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import MambaConfig

KEYS = keys(
    read={
        "vocab_size": 65536,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={"output_router_logits": (None, False)},
    harmless="""
    max_position_embeddings router_aux_loss_coef use_associative_scan use_mamba_kernels use_mambapy
    """,
    aliases={"num_local_experts": "num_experts"},
)


def _config(fields: Fields) -> ModelConfig:
    fields.choice("hidden_act", {"silu": "silu"})
    eps, count = fields.number("rms_norm_eps"), fields.layers("num_hidden_layers")
    mamba = MambaConfig(
        size=int(fields.number("mamba_expand") * fields.size("hidden_size")),
        state_size=fields.size("mamba_d_state"),
        step_rank=step_rank(fields, "mamba_dt_rank"),
        taps=fields.size("mamba_d_conv", least=2),
        conv_bias=fields.flag("mamba_conv_bias"),
        bias=fields.flag("mamba_proj_bias"),
        inner_norm_eps=eps,
        inner_norm_weights=True,
    )
    softmax, sparse = (_each(fields, name, count) for name in ("attn", "expert"))
    fields.get("num_experts_per_tok")  # marks the key as read
    layers = tuple(SoftmaxConfig() if attends else mamba for attends in softmax)
    model = decoder(fields, layers, qkv_bias=False, output_bias=False, rotates=False)
    if fields.size("num_experts", least=0) < 2:
        return model
    return with_moe(model, experts(fields, "num_experts", renormalize=False), sparse)


def _each(fields: Fields, name: str, count: int) -> list[bool]:
    """Whether each layer is at the offset in its period."""
    period, key = fields.size(f"{name}_layer_period"), f"{name}_layer_offset"
    offset = fields.size(key, least=0)
    if offset >= period:
        raise fields.wrong(key, f"below {name}_layer_period={period}", offset)
    return [layer % period == offset for layer in range(count)]


FORWARD, MIXER = f"{LAYER}.feed_forward", f"{LAYER}.mamba"
INNER = ("dt_layernorm", "b_layernorm", "c_layernorm")
OURS: dict[str, Any] = {
    **NAMES,
    "norm": "model.final_layernorm",
    **mixer_names(MIXER),
    **{f"mamba.inner_norms.{n}": f"{MIXER}.{name}.weight" for n, name in enumerate(INNER)},
    "mamba.norm": f"{LAYER}.input_layernorm",
    **{f"{kind}.norm": f"{LAYER}.pre_ff_layernorm" for kind in ("dense", "moe")},
    **{f"dense.{part}": f"{FORWARD}.{part}_proj" for part in ("gate", "up", "down")},
    "moe.router": f"{FORWARD}.router",
}

JAMBA = with_experts(KEYS, _config, OURS, lambda _: mixer_transforms(MIXER), FORWARD)
