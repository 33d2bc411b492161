"""Architectures of GGUF files with Mamba-2 beside attention: Granite 4, Falcon-H1 and Nemotron-H; and Granite with
experts."""

from __future__ import annotations

from t2r_export.checkpoints.gguf.architecture import (
    ATTENTION,
    ENDS,
    EXPERT,
    NORMS,
    PIECE,
    Architecture,
    Change,
    Config,
    anywhere,
    counts,
    neighbours,
    sizes_by_layer,
)
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.recurrent import of_mamba2
from t2r_export.checkpoints.gguf.rope import NUMBER


def mamba2(where: str) -> dict[str, str]:
    """Names of a Mamba-2 mixer in a module."""
    same = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_dt.bias": "dt_bias", "ssm_a": "A_log", "ssm_d": "D"}
    return {name: f"{where}.{ours}" for name, ours in (same | {"ssm_norm": "norm", "ssm_out": "out_proj"}).items()}


GATES_AND_UPS = {"gate": 0, "up": 1}
OF_GRANITE = {
    **ATTENTION,
    **NORMS,
    **mamba2("mamba"),
    **{f"ffn_{part}": f"shared_mlp.input_linear{PIECE}{place}" for part, place in GATES_AND_UPS.items()},
    **{f"ffn_{part}_shexp": f"shared_mlp.input_linear{PIECE}{place}" for part, place in GATES_AND_UPS.items()},
    **dict.fromkeys(("ffn_down", "ffn_down_shexp"), "shared_mlp.output_linear"),
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    **{
        f"ffn_{part}_exps": f"block_sparse_moe.input_linear{PIECE}{EXPERT}.{place}"
        for part, place in GATES_AND_UPS.items()
    },
    "ffn_down_exps": "block_sparse_moe.output_linear",
}
OF_FALCON_H1 = {
    **ATTENTION,
    **mamba2("mamba"),
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    "attn_norm": "input_layernorm",
    **dict.fromkeys(("ffn_norm", "ffn_norm.weight"), "pre_ff_layernorm.weight"),  # files have the former
}
OF_NEMOTRON_H = {
    **mamba2("mixer"),
    **{f"attn_{part}": f"mixer.{part}_proj" for part in "qkv"},
    "attn_output": "mixer.o_proj",
    **{f"ffn_{part}": f"mixer.{part}_proj" for part in ("up", "down")},
    "attn_norm": "norm",
}


def _mamba2(data: Metadata) -> Config:
    inner, heads = data.get("ssm.inner_size"), data.get("ssm.time_step_rank")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // max(heads, 1),
        "mamba_n_groups": data.get("ssm.group_count"),
        "mamba_d_state": data.get("ssm.state_size"),
        "mamba_d_conv": data.get("ssm.conv_kernel"),
        "mamba_conv_bias": anywhere(data, "ssm_conv1d.bias"),
        "mamba_proj_bias": anywhere(data, "ssm_in.bias"),
    }


def _multipliers(data: Metadata, head_size: int) -> Config:
    return {
        "attention_bias": anywhere(data, "attn_q.bias"),
        "embedding_multiplier": data.get("embedding_scale", NUMBER, 1.0),
        "residual_multiplier": data.get("residual_scale", NUMBER, 1.0),
        "attention_multiplier": data.get("attention.scale", NUMBER, max(head_size, 1) ** -0.5),
        "logits_scaling": data.get("logit_scale", NUMBER, 1.0),
    }


def _experts(data: Metadata) -> Config:
    """Keys of experts, if there are any, and of the feed-forward beside them or in their place."""
    data.get("expert_shared_feed_forward_length", int, 0)  # the shape says it too
    shared, dense = (data.tensors.get(f"blk.0.ffn_up{kind}.weight") for kind in ("_shexp", ""))
    beside = shared or dense
    feed_forward = data.same("feed_forward_length")
    return {
        "num_local_experts": data.get("expert_count", int, 0),
        "num_experts_per_tok": data.get("expert_used_count", int, 0),
        "intermediate_size": data.get("expert_feed_forward_length", int, feed_forward),
        **({"shared_intermediate_size": data.rows(beside.name)} if beside else {}),
    }


def _granite_hybrid(data: Metadata) -> Config:
    found, kv_heads = sizes_by_layer(data, "granitemoehybrid")
    more = {**_mamba2(data), **_multipliers(data, found["head_dim"]), **_experts(data)}
    rotates = data.get("rope.scaling.finetuned", bool, False)
    if not rotates:
        del found["rope_parameters"]
    return {**found, **more} | {
        "layer_types": ["attention" if count else "mamba" for count in kv_heads],
        "mamba_expand": data.get("ssm.inner_size") / max(found["hidden_size"], 1),
        "position_embedding_type": "rope" if rotates else "nope",
    }


def _granite_moe(data: Metadata) -> Config:
    found, experts = sizes_by_layer(data, "granitemoe")[0], _experts(data)
    if "shared_intermediate_size" in experts:
        found["model_type"] = "granitemoeshared"
    return found | _multipliers(data, found["head_dim"]) | experts


def _of_granite_hybrid(config: Config) -> dict[str, Change]:
    return of_mamba2(config) | neighbours(config)


def _falcon_h1(data: Metadata) -> Config:
    """All multipliers are 1: converters fold them into the weights."""
    return (
        sizes_by_layer(data, "falcon_h1")[0]
        | _mamba2(data)
        | {
            "intermediate_size": data.same("feed_forward_length"),
            "mamba_d_ssm": data.get("ssm.inner_size"),
            "mamba_rms_norm": anywhere(data, "ssm_norm.weight"),
            "mamba_norm_before_gate": False,
            "projectors_bias": anywhere(data, "ssm_out.bias"),
            "attention_bias": anywhere(data, "attn_q.bias"),
            "mlp_bias": anywhere(data, "ffn_up.bias"),
        }
    )


def _nemotron_h(data: Metadata) -> Config:
    found, kv_heads = sizes_by_layer(data, "nemotron_h")
    inner = counts(data, "feed_forward_length")
    kinds = ["attention" if kv else "mlp" if size else "mamba" for kv, size in zip(kv_heads, inner, strict=True)]
    mamba = _mamba2(data)
    same = ("model_type", "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {key: found[key] for key in same} | {
        "layers_block_type": kinds,
        "intermediate_size": max(inner, default=0),
        "mlp_hidden_act": "relu2",
        "mlp_bias": anywhere(data, "ffn_up.bias"),
        "ssm_state_size": mamba["mamba_d_state"],
        "mamba_num_heads": mamba["mamba_n_heads"],
        "mamba_head_dim": mamba["mamba_d_head"],
        "n_groups": mamba["mamba_n_groups"],
        "conv_kernel": mamba["mamba_d_conv"],
        "use_bias": mamba["mamba_proj_bias"],
        "use_conv_bias": mamba["mamba_conv_bias"],
        "time_step_min": 1e-30,  # no bound
        "layer_norm_epsilon": found["rms_norm_eps"],
    }


OF_BACKBONE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
HYBRIDS: dict[str, Architecture] = {
    "falcon-h1": Architecture(
        _falcon_h1, OF_FALCON_H1, {**ENDS, "output_norm": "model.final_layernorm"}, changes=of_mamba2
    ),
    "granitehybrid": Architecture(_granite_hybrid, OF_GRANITE, changes=_of_granite_hybrid),
    "granitemoe": Architecture(_granite_moe, OF_GRANITE, changes=neighbours),
    "nemotron_h": Architecture(_nemotron_h, OF_NEMOTRON_H, OF_BACKBONE, "backbone.layers.{}", of_mamba2),
}
