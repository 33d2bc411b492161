"""Architectures of GGUF files with gated delta nets beside attention: Qwen3.5 and Qwen3-Next."""

from __future__ import annotations

import torch
from torch import Tensor

from t2r_export.checkpoints.gguf.architecture import (
    EXPERT,
    NAMES_AFTER_ATTENTION,
    Architecture,
    Change,
    Config,
    anywhere,
    sizes_by_layer,
)
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.recurrent import decays, filters
from t2r_export.checkpoints.importers.sources import ONE_PLUS

# Qwen3.5's delta nets; Qwen3-Next's are shown as Qwen3.5's, which have a matrix for each of β and decays
OF_DELTA: dict[str, str | tuple[str, ...]] = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_ba.weight": ("linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"),
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
OF_QWEN3_5: dict[str, str | tuple[str, ...]] = {**NAMES_AFTER_ATTENTION, **OF_DELTA}
EXPERTS_OF_QWEN = {
    **{f"ffn_{part}_exps": f"mlp.experts.{EXPERT}.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}


def _delta(data: Metadata, model_type: str) -> Config:
    value_heads = data.get("ssm.time_step_rank")
    data.get("rope.dimension_sections", list, [])  # of images: all positions of a text are equal
    interval = max(data.get("full_attention_interval", int, 4), 1)
    periodic = [(layer + 1) % interval != 0 for layer in range(data.layers)]
    recurrent = data.by_layer("attention.recurrent_layers", bool, periodic)
    return sizes_by_layer(data, model_type)[0] | {
        "attention_bias": anywhere(data, "attn_q.bias"),
        "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
        "linear_conv_kernel_dim": data.get("ssm.conv_kernel"),
        "linear_key_head_dim": data.get("ssm.state_size"),
        "linear_num_key_heads": data.get("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": data.get("ssm.inner_size") // max(value_heads, 1),
    }


def _qwen3_5(data: Metadata) -> Config:
    return _delta(data, "qwen3_5_text") | {"intermediate_size": data.same("feed_forward_length")}


def _qwen3_5_moe(data: Metadata) -> Config:
    data.get("feed_forward_length", (int, list), 0)  # of no layer
    return _delta(data, "qwen3_5_moe_text") | {
        "num_experts": data.get("expert_count"),
        "num_experts_per_tok": data.get("expert_used_count"),
        "moe_intermediate_size": data.get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": data.get("expert_shared_feed_forward_length"),
    }


def _of_delta(config: Config) -> dict[str, Change]:
    norms = ("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm")
    return {
        **dict.fromkeys(norms, ONE_PLUS.store),
        "ssm_a": decays,
        "ssm_conv1d.weight": filters,
        "ffn_gate_inp_shexp": lambda gate: gate.reshape(1, -1),
    }


def _of_qwen3_5(config: Config) -> dict[str, Change]:
    """Value heads by key head, where a file has the first ones of all key heads, then the second ones, and so on."""
    keys, values = (max(config[f"linear_num_{name}_heads"], 1) for name in ("key", "value"))
    rest = 2 * keys * config["linear_key_head_dim"]

    def grouped(x: Tensor) -> Tensor:
        return x.reshape(values // keys, keys, x.shape[0] // values, *x.shape[1:]).transpose(0, 1).reshape(x.shape)

    def behind(x: Tensor) -> Tensor:
        return torch.cat([x[:rest], grouped(x[rest:])])

    plain = _of_delta(config)
    return plain | {
        "attn_qkv": behind,
        "attn_gate": grouped,
        "ssm_beta": grouped,
        "ssm_alpha": grouped,
        "ssm_dt.bias": grouped,
        "ssm_a": lambda a: decays(grouped(a)),
        "ssm_conv1d.weight": lambda weight: filters(behind(weight)),
        "ssm_out": lambda weight: grouped(weight.T).T,
    }


def _of_qwen3_next(config: Config) -> dict[str, Change]:
    """β and decays, which a file has by key head."""
    keys = max(config["linear_num_key_heads"], 1)

    def half(number: int) -> Change:
        return lambda x: x.reshape(keys, 2, -1, x.shape[-1])[:, number].flatten(0, 1)

    return _of_delta(config) | {f"linear_attn.in_proj_{name}.weight": half(number) for number, name in enumerate("ba")}


DELTA: dict[str, Architecture] = {
    "qwen35": Architecture(_qwen3_5, OF_QWEN3_5, changes=_of_qwen3_5),
    "qwen35moe": Architecture(_qwen3_5_moe, {**OF_QWEN3_5, **EXPERTS_OF_QWEN}, changes=_of_qwen3_5),
    "qwen3next": Architecture(_qwen3_5_moe, {**OF_QWEN3_5, **EXPERTS_OF_QWEN}, changes=_of_qwen3_next),
}
