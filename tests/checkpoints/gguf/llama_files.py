"""Files of families that are Llama with options: the keys and changes of tensors that converters write."""

from __future__ import annotations

from typing import Any

import numpy as np

from checkpoints.gguf.writer import Arrays, Values, adjacent, changed, rms, sizes


def same(tensors: Arrays, config: Any) -> Arrays:
    return tensors


def by_neighbours(tensors: Arrays, config: Any) -> Arrays:
    return adjacent(tensors, config.num_attention_heads, config.num_key_value_heads)


def more_one(tensors: Arrays, config: Any) -> Arrays:
    return changed(tensors, "norm.weight", lambda tensor: tensor + 1)


def layer_norms(config: Any) -> Values:
    """Keys of models with layer norms."""
    eps = next(getattr(config, name) for name in EPSILONS if hasattr(config, name))
    if config.model_type == "gpt2":
        inner = {"feed_forward_length": config.n_inner}
        found = sizes(config, **inner, **{"attention.layer_norm_epsilon": eps})
        return {key: value for key, value in found.items() if key != "attention.head_count_kv"}
    rope = config.rope_parameters
    head = config.hidden_size // config.num_attention_heads
    found = {"rope.freq_base": rope["rope_theta"], "attention.layer_norm_epsilon": eps}
    found["rope.dimension_count"] = int(head * rope.get("partial_rotary_factor", 1))
    if hasattr(config, "use_parallel_residual"):
        found["use_parallel_residual"] = config.use_parallel_residual
    return sizes(config, **found)


EPSILONS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")


def scaled_logits(config: Any) -> Values:
    return layer_norms(config) | {"logit_scale": config.logit_scale, "rope.scaling.type": "none"}


def cohere2(config: Any) -> Values:
    return scaled_logits(config) | {"attention.sliding_window": config.sliding_window}


def sliding(config: Any) -> Values:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    ropes = config.rope_parameters
    found = rms(config, ropes.get("full_attention", ropes)["rope_theta"])
    return found | {"attention.sliding_window": config.sliding_window, "attention.sliding_window_pattern": slides}


def partial(config: Any) -> Values:
    share = config.rope_parameters["partial_rotary_factor"]
    return rms(config) | {"rope.dimension_count": int(config.head_dim * share)}


def ministral3(config: Any) -> Values:
    rope = config.rope_parameters
    return rms(config) | {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def bloom(config: Any) -> Values:
    return {
        "context_length": 50,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 4 * config.hidden_size,
        "block_count": config.n_layer,
        "attention.head_count": config.n_head,
        "attention.head_count_kv": config.n_head,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def by_parts(tensors: Arrays, config: Any) -> Arrays:
    """Rows of all queries, of all keys and of all values, in place of those of each head."""

    def turned(tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        split = tensor.reshape(config.num_attention_heads, 3, -1, *tensor.shape[1:])
        return split.swapaxes(0, 1).reshape(tensor.shape)

    return {name: turned(tensor) if "attn_qkv" in name else tensor for name, tensor in tensors.items()}


def olmo(config: Any) -> Values:
    rope = {"rope.freq_base": config.rope_parameters["rope_theta"], "rope.scaling.type": "none"}
    return sizes(config) | rope | {"attention.layer_norm_epsilon": 1e-5}


MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 3.0,
    "original_max_position_embeddings": 10,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
WINDOWS = {"sliding_window": 5, "num_hidden_layers": 5}
COHERE = {"logit_scale": 0.3, "layer_norm_eps": 1e-3, "pad_token_id": 0}
# name -> architecture, family in transformers, its config, keys, and change of tensors
LLAMAS: dict[str, tuple[Any, ...]] = {
    "arcee": ("arcee", "Arcee", {"attention_bias": True, "mlp_bias": True}, rms, by_neighbours),
    "bloom": ("bloom", "Bloom", {"n_layer": 3, "n_head": 6}, bloom, by_parts),
    "hunyuan-dense": ("hunyuan-dense", "HunYuanDenseV1", {"head_dim": 10, "attention_bias": True}, rms, same),
    "jais2": ("jais2", "Jais2", {"layer_norm_eps": 1e-3}, layer_norms, same),
    "mistral3": ("mistral3", "Ministral3", {"head_dim": 10, "rope_parameters": MINISTRAL}, ministral3, by_neighbours),
    "command-r": ("command-r", "Cohere", COHERE, scaled_logits, same),
    "cohere2": ("cohere2", "Cohere2", COHERE | WINDOWS, cohere2, same),
    "ernie4_5": ("ernie4_5", "Ernie4_5", {"head_dim": 10, "pad_token_id": 0}, rms, same),
    "exaone4": ("exaone4", "Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}, rms, same),
    "exaone4 windows": ("exaone4", "Exaone4", WINDOWS, sliding, same),
    "glm4": ("glm4", "Glm4", {"head_dim": 8, "attention_bias": True, "pad_token_id": 0}, partial, same),
    "nemotron": ("nemotron", "Nemotron", {"attention_bias": True, "norm_eps": 1e-3}, layer_norms, more_one),
    "olmo": ("olmo", "Olmo", {"pad_token_id": 0}, olmo, by_neighbours),
    "olmo2": ("olmo2", "Olmo2", {}, rms, same),
    "olmo3": ("olmo2", "Olmo3", WINDOWS, sliding, same),
    "phi2": ("phi2", "Phi", {"layer_norm_eps": 1e-3}, layer_norms, same),
    "seed_oss": ("seed_oss", "SeedOss", {"head_dim": 10, "attention_out_bias": True}, rms, same),
}
