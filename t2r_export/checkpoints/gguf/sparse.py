"""Architectures of GGUF files with experts chosen by scores and a bias: GLM-4.5, dots.llm1, ERNIE 4.5 and LFM2."""

from __future__ import annotations

from t2r_export.checkpoints.gguf.architecture import (
    EXPERT,
    NAMES,
    NAMES_AFTER_ATTENTION,
    Architecture,
    Config,
    anywhere,
    has,
    partly_rotated,
    sizes,
)
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.recurrent import ENDS_OF_LFM2, OF_LFM2, filters, lfm2
from t2r_export.checkpoints.gguf.rope import NUMBER

SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
PARTS = ("gate", "up", "down")
BIAS = "exp_probs_b.bias"
SHARED = {
    **{f"ffn_{part}_exps": f"mlp.experts.{EXPERT}.{part}_proj" for part in PARTS},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in PARTS},
    "ffn_gate_inp": "mlp.gate",
}
OF_DOTS1 = {**NAMES, **SHARED, BIAS: "mlp.gate.e_score_correction_bias"}
OF_GLM4_MOE = {**NAMES_AFTER_ATTENTION, **SHARED, BIAS: OF_DOTS1[BIAS]}
OF_ERNIE = {**NAMES, **SHARED, BIAS: "mlp.moe_statics.e_score_correction_bias"}
OF_LFM2_MOE = {
    **OF_LFM2,
    **{
        f"ffn_{part}_exps": f"feed_forward.experts.{EXPERT}.{name}"
        for part, name in zip(PARTS, ("w1", "w3", "w2"), strict=True)
    },
    "ffn_gate_inp": "feed_forward.gate",
    BIAS: "feed_forward.expert_bias",
}


def _by_sigmoids(data: Metadata) -> Config:
    """Keys of experts that sigmoids choose; those in one group only."""
    data.only("expert_gating_func", SIGMOID)
    for key in ("expert_group_count", "expert_group_used_count"):
        data.only(key, 1)
    return {
        "num_experts_per_tok": data.get("expert_used_count"),
        "moe_intermediate_size": data.get("expert_feed_forward_length"),
        "routed_scaling_factor": data.get("expert_weights_scale", NUMBER, 1.0),
    }


def _beside_shared(data: Metadata, model_type: str) -> Config:
    """The config of a decoder with a shared expert."""
    data.get("expert_shared_feed_forward_length", int, 0)  # the shape says it too
    return sizes(data, model_type) | {
        **_by_sigmoids(data),
        "n_routed_experts": data.get("expert_count"),
        "n_shared_experts": data.get("expert_shared_count"),
        "first_k_dense_replace": data.get("leading_dense_block_count", int, 0),
        "norm_topk_prob": data.get("expert_weights_norm", bool, False),
        "attention_bias": has(data, "attn_q.bias"),
    }


def _glm4_moe(data: Metadata) -> Config:
    return partly_rotated(_beside_shared(data, "glm4_moe")) | {"use_qk_norm": has(data, "attn_q_norm.weight")}


def _ernie4_5_moe(data: Metadata) -> Config:
    data.only("expert_gating_func", SOFTMAX)
    data.get("expert_shared_feed_forward_length", int, 0)  # converters write another number than the shape's
    return sizes(data, "ernie4_5_moe") | {
        "moe_num_experts": data.get("expert_count"),
        "moe_k": data.get("expert_used_count"),
        "moe_intermediate_size": data.get("expert_feed_forward_length"),
        "moe_num_shared_experts": data.get("expert_shared_count", int, 0),
        "moe_layer_start_index": data.get("leading_dense_block_count", int, 0),
        "moe_layer_interval": data.get("interleave_moe_layer_step", int, 1),
    }


def _lfm2_moe(data: Metadata) -> Config:
    return lfm2(data, "lfm2_moe") | {
        **_by_sigmoids(data),
        "num_experts": data.get("expert_count"),
        "num_dense_layers": data.get("leading_dense_block_count", int, 0),
        "norm_topk_prob": data.get("expert_weights_norm", bool, True),
        "use_expert_bias": anywhere(data, BIAS),
    }


SPARSE: dict[str, Architecture] = {
    "dots1": Architecture(lambda data: _beside_shared(data, "dots1") | {"sliding_window": None}, OF_DOTS1),
    "ernie4_5-moe": Architecture(_ernie4_5_moe, OF_ERNIE, changes=lambda _: {BIAS: lambda bias: bias.reshape(1, -1)}),
    "glm4moe": Architecture(_glm4_moe, OF_GLM4_MOE),
    "lfm2moe": Architecture(_lfm2_moe, OF_LFM2_MOE, ENDS_OF_LFM2, changes=lambda _: {"shortconv.conv.weight": filters}),
}
