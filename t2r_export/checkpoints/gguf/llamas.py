"""Architectures of GGUF files that are Llama with a few options: other norms, windows, biases, or partial rotation."""

from __future__ import annotations

import math

from t2r_export.checkpoints.gguf.architecture import (
    ATTENTION,
    DENSE,
    ENDS,
    NAMES,
    NAMES_AFTER_ATTENTION,
    NORMS_AFTER,
    Architecture,
    Change,
    Config,
    biases,
    has,
    less_one,
    neighbours,
    partly_rotated,
    sizes,
    windows,
    with_biases,
)
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.rope import NUMBER

OF_GLM4 = {
    **NAMES,
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
OF_PHI2 = {**NAMES, "attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}
OF_HUNYUAN = {
    **NAMES,
    **{f"attn_{part}_norm": f"self_attn.{name}_layernorm" for part, name in (("q", "query"), ("k", "key"))},
}
OLMO_EPS = 1e-5  # of OLMo's norms, which have no weights
NORMS = ("attn_norm", "ffn_norm", "output_norm")


def _cohere(data: Metadata, model_type: str) -> Config:
    return sizes(data, model_type, "layer_norm_eps") | {"logit_scale": data.get("logit_scale", NUMBER)}


def _cohere2(data: Metadata) -> Config:
    return _cohere(data, "cohere2") | windows(data, 4)


def _exaone4(data: Metadata) -> Config:
    slides = windows(data, 4) if data.has("attention.sliding_window") else {"sliding_window": None}
    return sizes(data, "exaone4") | slides


def _glm4(data: Metadata) -> Config:
    return partly_rotated(sizes(data, "glm4")) | {"attention_bias": has(data, "attn_q.bias")}


def _ministral3(data: Metadata) -> Config:
    """Ministral 3, or Mistral 3, whose queries are not scaled by position."""
    found = sizes(data, "ministral3") | {"sliding_window": None}
    rope, scales = found["rope_parameters"], data.get("attention.temperature_scale", NUMBER, 0.0)
    rope |= {
        "llama_4_scaling_beta": scales,
        "original_max_position_embeddings": found["max_position_embeddings"],
    } | rope
    if spread := data.get("rope.scaling.yarn_log_multiplier", NUMBER, 0.0):
        rope["attention_factor"] /= 1 + 0.1 * spread * math.log(max(rope["factor"], 1.0))
    return found


def _olmo(data: Metadata) -> Config:
    found = sizes(data, "olmo", "layer_norm_eps", "head_dim")
    if (eps := found.pop("layer_norm_eps")) != OLMO_EPS:
        raise data.wrong("olmo.attention.layer_norm_epsilon", f"{OLMO_EPS}", eps, "use another model")
    return found


def _of_olmo(config: Config) -> dict[str, Change]:
    return neighbours({"head_dim": config["hidden_size"] // max(config["num_attention_heads"], 1)})


def _olmo2(data: Metadata) -> Config:
    """OLMo 2, and with windows OLMo 3, which does not scale the positions of these."""
    found = sizes(data, "olmo2", lacks="head_dim")
    if not data.has("attention.sliding_window"):
        return found
    full = found.pop("rope_parameters")
    local = data.get("rope.freq_base_swa", NUMBER, full["rope_theta"])
    both = {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": local}}
    return found | windows(data, 4) | {"model_type": "olmo3", "rope_parameters": both}


def _seed(data: Metadata) -> Config:
    return with_biases(data, "seed_oss") | {"attention_out_bias": has(data, "attn_output.bias")}


LLAMAS: dict[str, Architecture] = {
    "arcee": Architecture(lambda data: with_biases(data, "arcee"), changes=neighbours),
    "cohere2": Architecture(_cohere2),
    "command-r": Architecture(lambda data: _cohere(data, "cohere")),
    "ernie4_5": Architecture(lambda data: sizes(data, "ernie4_5")),
    "exaone4": Architecture(_exaone4, NORMS_AFTER),
    "glm4": Architecture(_glm4, OF_GLM4),
    "hunyuan-dense": Architecture(
        lambda data: sizes(data, "hunyuan_v1_dense") | {"attention_bias": has(data, "attn_q.bias")}, OF_HUNYUAN
    ),
    "jais2": Architecture(lambda data: sizes(data, "jais2", "layer_norm_eps") | biases(data)),
    "mistral3": Architecture(_ministral3, changes=neighbours),
    "nemotron": Architecture(
        lambda data: partly_rotated(sizes(data, "nemotron", "norm_eps")) | biases(data),
        changes=less_one(f"{name}.weight" for name in NORMS),
    ),
    "olmo": Architecture(_olmo, {**ATTENTION, **DENSE}, changes=_of_olmo),
    "olmo2": Architecture(_olmo2, NORMS_AFTER),
    "phi2": Architecture(
        lambda data: partly_rotated(sizes(data, "phi", "layer_norm_eps", "head_dim")),
        OF_PHI2,
        {**ENDS, "output_norm": "model.final_layernorm"},
    ),
    "seed_oss": Architecture(_seed, NAMES_AFTER_ATTENTION),
}
