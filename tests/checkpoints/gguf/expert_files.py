"""Files of families with experts: the keys and changes of tensors that llama.cpp's converters write."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkpoints.gguf.hybrid_files import lfm2, with_drafts
from checkpoints.gguf.writer import Arrays, Values, adjacent, changed, rms
from checkpoints.importers.recurrent_models import LFM2_MOE
from checkpoints.importers.softmax_models import GLM4_MOE


def experts(config: Any) -> Values:
    count = config.num_local_experts if hasattr(config, "num_local_experts") else config.num_experts
    shared = getattr(config, "shared_expert_intermediate_size", None)
    return rms(config) | {
        "expert_count": count,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", config.intermediate_size),
        **({} if shared is None else {"expert_shared_feed_forward_length": shared}),
    }


def stacked(tensors: Arrays, config: Any) -> Arrays:
    """Gates and ups of experts apart, and the shared expert's gate as a vector."""
    found: Arrays = {}
    for name, tensor in tensors.items():
        if "ffn_gate_up_exps" in name:
            gates, ups = np.split(tensor, 2, axis=1)
            found[name.replace("gate_up", "gate") + ".weight"] = gates
            found[name.replace("gate_up", "up") + ".weight"] = ups
        elif "exps" in name:
            found[f"{name}.weight"] = tensor
        else:
            found[name] = tensor[0] if "inp_shexp" in name else tensor
    return found


def of_mixtral(tensors: Arrays, config: Any) -> Arrays:
    return stacked(adjacent(tensors, config.num_attention_heads, config.num_key_value_heads), config)


def scored(config: Any) -> Values:
    """Keys of experts that are chosen by sigmoids and a bias."""
    return {
        "expert_count": config.n_routed_experts if hasattr(config, "n_routed_experts") else config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 2,
    }


def beside_shared(config: Any) -> Values:
    groups = {"expert_group_count": 1, "expert_group_used_count": 1}
    shared = {"expert_shared_count": config.n_shared_experts, "leading_dense_block_count": config.first_k_dense_replace}
    return rms(config) | scored(config) | groups | shared


def glm4_moe(config: Any) -> Values:
    """With a layer that drafts tokens."""
    head = config.hidden_size // config.num_attention_heads
    return beside_shared(config) | {
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": int(head * config.rope_parameters["partial_rotary_factor"]),
        "block_count": config.num_hidden_layers + 1,
        "nextn_predict_layers": 1,
    }


def ernie(config: Any) -> Values:
    return rms(config) | {
        "expert_count": config.moe_num_experts,
        "expert_used_count": config.moe_k,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.moe_num_shared_experts,
        "expert_shared_feed_forward_length": config.intermediate_size // config.num_key_value_heads,
        "leading_dense_block_count": config.moe_layer_start_index,
        "interleave_moe_layer_step": config.moe_layer_interval,
    }


def lfm2_moe(config: Any) -> Values:
    return lfm2(config) | scored(config) | {"leading_dense_block_count": config.num_dense_layers}


def of_lfm2_moe(tensors: Arrays, config: Any) -> Arrays:
    found = changed(stacked(tensors, config), "shortconv.conv.weight", lambda weight: weight[:, 0])
    return {f"{name}.bias" if name.endswith("exp_probs_b") else name: x for name, x in found.items()}


MOE = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 8}
DENSE_FIRST = {**GLM4_MOE, "num_hidden_layers": 3, "first_k_dense_replace": 1, "max_position_embeddings": 50}
# name -> architecture, family in transformers, its config, keys, and change of tensors
EXPERTS: dict[str, tuple[Any, ...]] = {
    "mixtral": (
        "llama",
        "Mixtral",
        {"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": None, "intermediate_size": 8},
        experts,
        of_mixtral,
    ),
    "qwen2moe": ("qwen2moe", "Qwen2Moe", MOE | {"shared_expert_intermediate_size": 7}, experts, stacked),
    "qwen3moe": ("qwen3moe", "Qwen3Moe", MOE | {"head_dim": 10, "norm_topk_prob": True}, experts, stacked),
    "olmoe": ("olmoe", "Olmoe", MOE | {"intermediate_size": 8}, experts, stacked),
    "glm4moe": (
        "glm4moe",
        "Glm4Moe",
        {**DENSE_FIRST, "use_qk_norm": True, "attention_bias": True},
        glm4_moe,
        lambda tensors, config: with_drafts(stacked(tensors, config), config),
    ),
    "dots1": (
        "dots1",
        "Dots1",
        {**DENSE_FIRST, "head_dim": 10, "norm_topk_prob": True, "sliding_window": None},
        beside_shared,
        stacked,
    ),
    "ernie4_5-moe": (
        "ernie4_5-moe",
        "Ernie4_5_Moe",
        {
            "num_hidden_layers": 4,
            "moe_intermediate_size": 8,
            "moe_num_experts": 5,
            "moe_k": 3,
            "moe_num_shared_experts": 2,
            "moe_layer_interval": 2,
            "pad_token_id": 0,
        },
        ernie,
        stacked,
    ),
    "lfm2moe": (
        "lfm2moe",
        "Lfm2Moe",
        {**LFM2_MOE.sizes, "max_position_embeddings": 50},
        lfm2_moe,
        of_lfm2_moe,
    ),
}
