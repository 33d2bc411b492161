"""Files of hybrid families: the keys and changes of tensors that llama.cpp's converters write."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkpoints.gguf.writer import Arrays, Values, adjacent, changed, sizes
from checkpoints.importers.recurrent_models import FALCON, GRANITE, JAMBA, NEMOTRON, QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT

UNTIED = {"tie_word_embeddings": False}


def heads(config: Any) -> Values:
    """Keys of attention with rotary positions."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters or {}
    return sizes(config) | {
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1)),
        "rope.freq_base": rope.get("rope_theta", 10000.0),
    }


def delta(config: Any) -> Values:
    experts = {}
    if hasattr(config, "num_experts"):
        experts = {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        }
    return (
        heads(config)
        | experts
        | {
            "rope.dimension_sections": [1, 1, 0, 0],
            "full_attention_interval": 2,
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
        }
    )


def drafting(config: Any) -> Values:
    """Layers that are not periodic, and one more that drafts tokens."""
    recurrent = [kind == "linear_attention" for kind in config.layer_types]
    found = delta(config) | {"block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1}
    return found | {"attention.recurrent_layers": [*recurrent, False]}


def with_drafts(tensors: Arrays, config: Any) -> Arrays:
    last, norm = f"blk.{config.num_hidden_layers}", tensors["output_norm.weight"]
    return tensors | {f"{last}.attn_norm.weight": norm, f"{last}.nextn.eh_proj.weight": np.ones((3, 5))}


def plain_delta(tensors: Arrays, config: Any) -> Arrays:
    """Sums of norms, A, filters without an axis; experts apart, and a gate as a vector."""
    found: Arrays = {}
    for name, tensor in tensors.items():
        if name.endswith("norm.weight") and "ssm_norm" not in name:
            found[name] = tensor + 1
        elif name.endswith("ssm_a"):
            found[name] = -np.exp(tensor)
        elif "ssm_conv1d" in name:
            found[name] = tensor[:, 0]
        elif "inp_shexp" in name:
            found[name] = tensor[0]
        elif "ffn_gate_up_exps" in name:
            gates, ups = np.split(tensor, 2, axis=1)
            found |= {name.replace("gate_up", part) + ".weight": x for part, x in (("gate", gates), ("up", ups))}
        else:
            found[f"{name}.weight" if name.endswith("_exps") else name] = tensor
    return found


def tiled(tensors: Arrays, config: Any) -> Arrays:
    """Value heads: the first of every key head, then the second of every one."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    rest = 2 * keys * config.linear_key_head_dim

    def turned(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x.reshape(keys, values // keys, len(x) // values, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

    found = plain_delta(tensors, config)
    for name, x in found.items():
        if "attn_qkv" in name or "ssm_conv1d" in name:
            found[name] = np.concatenate([x[:rest], turned(x[rest:])])
        elif any(part in name for part in ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_dt", "ssm_a")):
            found[name] = turned(x)
        elif "ssm_out" in name:
            found[name] = turned(x.T).T
    return found


def ungrouped(tensors: Arrays, config: Any) -> Arrays:
    """Queries, keys and values of all key heads, and gates in a tensor of their own."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    size, wide = config.linear_key_head_dim, config.linear_value_head_dim * values // keys
    found: Arrays = {}
    for name, x in plain_delta(tensors, config).items():
        if "ssm_in" not in name:
            found[name] = x
            continue
        *qkv, z = np.split(x.reshape(keys, -1, x.shape[1]), np.cumsum([size, size, wide]), axis=1)
        found[name.replace("ssm_in", "attn_qkv")] = np.concatenate([part.reshape(-1, x.shape[1]) for part in qkv])
        found[name.replace("ssm_in", "attn_gate")] = z.reshape(-1, x.shape[1])
    return found


def mamba2(config: Any, prefix: str = "mamba_") -> Values:
    count, size = (getattr(config, prefix + name) for name in ("n_heads", "d_head"))
    return {
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.inner_size": count * size,
        "ssm.time_step_rank": count,
        "ssm.group_count": config.mamba_n_groups,
    }


def states(tensors: Arrays, groups: int) -> Arrays:
    found = changed(tensors, "ssm_a", lambda a: -np.exp(a))
    found = changed(found, "ssm_conv1d.weight", lambda weight: weight[:, 0])
    found = changed(found, "ssm_norm.weight", lambda weight: weight.reshape(groups, -1))
    return {name: x[:, None] if name.endswith(("ssm_a", "ssm_d")) else x for name, x in found.items()}


def granite(config: Any) -> Values:
    kinds = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
    attends = [kind in ("attention", "full_attention") for kind in kinds]
    experts = getattr(config, "num_local_experts", 0)
    found = heads(config) | {
        "attention.head_count_kv": [config.num_key_value_heads if each else 0 for each in attends],
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "attention.scale": config.attention_multiplier,
        "logit_scale": config.logits_scaling,
        **({"expert_count": experts, "expert_used_count": config.num_experts_per_tok} if experts else {}),
    }
    if not all(attends):
        found |= mamba2(config) | {"rope.scaling.finetuned": config.position_embedding_type == "rope"}
    return found


def halves(tensors: Arrays, config: Any) -> Arrays:
    """Gates and ups apart; queries and keys for rotation of neighbours."""
    found: Arrays = {}
    dense = not getattr(config, "num_local_experts", 0)
    for name, x in adjacent(tensors, config.num_attention_heads, config.num_key_value_heads).items():
        if "gate_up" in name:
            gates, ups = np.split(x, 2, axis=-2)
            ending = "" if name.endswith(".weight") else ".weight"
            kind = name.replace("_shexp", "") if dense else name
            found |= {kind.replace("gate_up", part) + ending: half for part, half in (("gate", gates), ("up", ups))}
        else:
            name = f"{name}.weight" if name.endswith("_exps") else name
            found[name.replace("_shexp", "") if dense else name] = x
    return states(found, getattr(config, "mamba_n_groups", 1))


def falcon_h1(config: Any) -> Values:
    return heads(config) | mamba2(config)


def multiplied(tensors: Arrays, config: Any) -> Arrays:
    """Multipliers in the weights."""
    inner, groups = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    rows = np.repeat(config.ssm_multipliers, [inner, inner, groups, groups, config.mamba_n_heads])
    factors = {
        "ffn_gate": config.mlp_multipliers[0],
        "ffn_down": config.mlp_multipliers[1],
        "attn_q": config.attention_in_multiplier,
        "attn_k": config.key_multiplier * config.attention_in_multiplier,
        "attn_v": config.attention_in_multiplier,
        "attn_output": config.attention_out_multiplier,
        "ssm_out": config.ssm_out_multiplier,
        "ssm_in": config.ssm_in_multiplier * rows[:, None],
        "output": config.lm_head_multiplier,
        "token_embd": config.embedding_multiplier,
    }
    found = states(tensors, config.mamba_n_groups)
    return {name: x * factors.get(name.removesuffix(".weight").rpartition(".")[2], 1.0) for name, x in found.items()}


def nemotron_h(config: Any) -> Values:
    kinds = config.layers_block_type
    kv_heads = [config.num_key_value_heads if kind == "full_attention" else 0 for kind in kinds]
    return {
        "vocab_size": config.vocab_size,
        "context_length": 50,
        "block_count": len(kinds),
        "embedding_length": config.hidden_size,
        "feed_forward_length": [config.intermediate_size if kind == "mlp" else 0 for kind in kinds],
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "rope.dimension_count": config.head_dim,
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.ssm_state_size,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "ssm.time_step_rank": config.mamba_num_heads,
        "ssm.group_count": config.n_groups,
    }


def jamba(config: Any) -> Values:
    period, offset = config.attn_layer_period, config.attn_layer_offset
    attends = [layer % period == offset for layer in range(config.num_hidden_layers)]
    return sizes(config) | {
        "attention.head_count_kv": [config.num_key_value_heads if each else 0 for each in attends],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.state_size": config.mamba_d_state,
        "ssm.time_step_rank": config.mamba_dt_rank,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
    }


def mamba1(tensors: Arrays, config: Any) -> Arrays:
    """A and filters as of Mamba; gates and ups of experts apart."""
    found: Arrays = {}
    for name, x in tensors.items():
        if "ffn_gate_up_exps" in name:
            gates, ups = np.split(x, 2, axis=1)
            found |= {name.replace("gate_up", part) + ".weight": half for part, half in (("gate", gates), ("up", ups))}
        else:
            found[f"{name}.weight" if name.endswith("_exps") else name] = x
    found = changed(found, "ssm_a", lambda a: -np.exp(a))
    return changed(found, "ssm_conv1d.weight", lambda weight: weight[:, 0])


def lfm2(config: Any) -> Values:
    kinds = [kind == "full_attention" for kind in config.layer_types]
    return sizes(config) | {
        "attention.head_count_kv": [config.num_key_value_heads if attends else 0 for attends in kinds],
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "shortconv.l_cache": config.conv_L_cache,
    }


def filters(tensors: Arrays, config: Any) -> Arrays:
    return changed(tensors, "shortconv.conv.weight", lambda weight: weight[:, 0])


TYPES = ["linear_attention", "full_attention"] * 2
LFM2 = {
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
    "pad_token_id": 0,
}
OF_MAMBA2 = {"time_step_limit": (0.0, float("inf")), "max_position_embeddings": 50, **UNTIED}
GRANITE_MOE = {
    "num_local_experts": 5,
    "num_experts_per_tok": 3,
    "intermediate_size": 8,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
    "attention_multiplier": 0.4,
    **UNTIED,
}
IN_TURN = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
QWEN = {"layer_types": TYPES, "max_position_embeddings": 50, **UNTIED}
# name -> architecture, family in transformers, its config, keys, and change of tensors
HYBRIDS: dict[str, tuple[Any, ...]] = {
    "lfm2": ("lfm2", "Lfm2", LFM2, lfm2, filters),
    "qwen35": ("qwen35", "Qwen3_5", {**QWEN3_5.sizes, **QWEN}, delta, tiled),
    "qwen35 with drafts": (
        "qwen35",
        "Qwen3_5",
        {**QWEN3_5.sizes, **QWEN, "layer_types": IN_TURN},
        drafting,
        lambda tensors, config: with_drafts(tiled(tensors, config), config),
    ),
    "qwen35moe": ("qwen35moe", "Qwen3_5Moe", {**QWEN3_5_MOE.sizes, **QWEN}, delta, tiled),
    "qwen3next": ("qwen3next", "Qwen3Next", {**QWEN3_NEXT.sizes, **QWEN, "mlp_only_layers": []}, delta, ungrouped),
    "granitehybrid": ("granitehybrid", "GraniteMoeHybrid", {**GRANITE.sizes, **OF_MAMBA2}, granite, halves),
    "granitehybrid rotary, with experts": (
        "granitehybrid",
        "GraniteMoeHybrid",
        {**GRANITE.sizes, **OF_MAMBA2, **GRANITE_MOE, "position_embedding_type": "rope", "mamba_proj_bias": True},
        granite,
        halves,
    ),
    "granitemoe": ("granitemoe", "GraniteMoe", GRANITE_MOE, granite, halves),
    "granitemoe shared": (
        "granitemoe",
        "GraniteMoeShared",
        {**GRANITE_MOE, "shared_intermediate_size": 7},
        granite,
        halves,
    ),
    "jamba": ("jamba", "Jamba", {**JAMBA.sizes, **UNTIED, "num_hidden_layers": 5}, jamba, mamba1),
    "jamba without experts": (
        "jamba",
        "Jamba",
        {**JAMBA.sizes, "num_experts": 1, "mamba_proj_bias": True, "attn_layer_period": 4, "attn_layer_offset": 2},
        jamba,
        mamba1,
    ),
    "falcon-h1": ("falcon-h1", "FalconH1", {**FALCON.sizes, **OF_MAMBA2}, falcon_h1, multiplied),
    "falcon-h1 norm": (
        "falcon-h1",
        "FalconH1",
        {**FALCON.sizes, **OF_MAMBA2, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
        falcon_h1,
        multiplied,
    ),
    "nemotron_h": (
        "nemotron_h",
        "NemotronH",
        {**NEMOTRON.sizes, "time_step_min": 1e-9},
        nemotron_h,
        lambda tensors, config: states(tensors, config.n_groups),
    ),
}
