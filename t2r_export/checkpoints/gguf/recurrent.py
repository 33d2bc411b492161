"""Architectures of GGUF files with recurrent layers: Mamba, Mamba-2 and LFM2."""

from __future__ import annotations

import torch
from torch import Tensor

from t2r_export.checkpoints.gguf.architecture import NORMS, Architecture, Change, Config, counts
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.rope import NUMBER, rope_parameters

OF_MAMBA = {
    "attn_norm": "norm",
    "ssm_in": "mixer.in_proj",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_x": "mixer.x_proj",
    "ssm_dt": "mixer.dt_proj",
    "ssm_a": "mixer.A_log",
    "ssm_d": "mixer.D",
    "ssm_out": "mixer.out_proj",
}
OF_MAMBA2 = {name: place for name, place in OF_MAMBA.items() if name not in ("ssm_x", "ssm_dt")} | {
    "ssm_dt.bias": "mixer.dt_bias",
    "ssm_norm": "mixer.norm",
}
ENDS = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
OF_LFM2 = {
    **NORMS,
    "attn_norm": "operator_norm",
    "ffn_norm": "ffn_norm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_gate": "feed_forward.w1",
    "ffn_down": "feed_forward.w2",
    "ffn_up": "feed_forward.w3",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "shortconv.conv": "conv.conv",
}
ENDS_OF_LFM2 = {"token_embd": "model.embed_tokens", "output": "lm_head"} | dict.fromkeys(
    ("token_embd_norm", "output_norm"), "model.embedding_norm"
)


def decays(a: Tensor) -> Tensor:
    """A_log, of which a file has -exp(A_log)."""
    return torch.log(-a)


def filters(weight: Tensor) -> Tensor:
    """(channels, n) -> (channels, 1, n)."""
    return weight[:, None]


def _mamba(data: Metadata, model_type: str) -> Config:
    return {
        "model_type": model_type,
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": data.get("embedding_length"),
        "num_hidden_layers": data.layers,
        "state_size": data.get("ssm.state_size"),
        "conv_kernel": data.get("ssm.conv_kernel"),
        "use_bias": "blk.0.ssm_in.bias" in data.tensors,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in data.tensors,
        "layer_norm_epsilon": data.get("attention.layer_norm_rms_epsilon", NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }


def _mamba1(data: Metadata) -> Config:
    inner, rank = data.get("ssm.inner_size"), data.get("ssm.time_step_rank")
    kind = "falcon_mamba" if data.get("ssm.dt_b_c_rms", bool, False) else "mamba"
    return _mamba(data, kind) | {"intermediate_size": inner, "time_step_rank": rank}


def _mamba2(data: Metadata) -> Config:
    inner, heads = data.get("ssm.inner_size"), data.get("ssm.time_step_rank")
    found = _mamba(data, "mamba2")
    return found | {
        "expand": inner / max(found["hidden_size"], 1),
        "num_heads": heads,
        "head_dim": inner // max(heads, 1),
        "n_groups": data.get("ssm.group_count"),
    }


def of_mamba1(config: Config) -> dict[str, Change]:
    return {"ssm_a": decays, "ssm_conv1d.weight": filters}


def of_mamba2(config: Config) -> dict[str, Change]:
    return {
        "ssm_a": lambda a: decays(a.flatten()),
        "ssm_d": torch.flatten,
        "ssm_norm.weight": torch.flatten,
        "ssm_conv1d.weight": filters,
    }


def lfm2(data: Metadata, model_type: str) -> Config:
    heads, width = data.same("attention.head_count"), data.get("embedding_length")
    kv_heads = counts(data, "attention.head_count_kv")
    return {
        "model_type": model_type,
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": width,
        "num_hidden_layers": len(kv_heads),
        "intermediate_size": data.same("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": max(kv_heads, default=0),
        "layer_types": ["full_attention" if count else "conv" for count in kv_heads],
        "max_position_embeddings": data.get("context_length"),
        "rope_parameters": rope_parameters(data, width // max(heads, 1)),
        "norm_eps": data.get("attention.layer_norm_rms_epsilon", NUMBER),
        "conv_L_cache": data.get("shortconv.l_cache"),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }


RECURRENT: dict[str, Architecture] = {
    "lfm2": Architecture(
        lambda data: lfm2(data, "lfm2") | {"block_auto_adjust_ff_dim": False},
        OF_LFM2,
        ENDS_OF_LFM2,
        changes=lambda _: {"shortconv.conv.weight": filters},
    ),
    "mamba": Architecture(_mamba1, OF_MAMBA, ENDS, "backbone.layers.{}", of_mamba1),
    "mamba2": Architecture(_mamba2, OF_MAMBA2, ENDS, "backbone.layers.{}", of_mamba2),
}
