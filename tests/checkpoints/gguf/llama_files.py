"""Files of families that are Llama with options: the keys and changes of tensors that converters write."""

from __future__ import annotations

from typing import Any

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


def olmo(config: Any) -> Values:
    rope = {"rope.freq_base": config.rope_parameters["rope_theta"], "rope.scaling.type": "none"}
    return sizes(config) | rope | {"attention.layer_norm_epsilon": 1e-5}


WINDOWS = {"sliding_window": 5, "num_hidden_layers": 5}
COHERE = {"logit_scale": 0.3, "layer_norm_eps": 1e-3, "pad_token_id": 0}
# name -> architecture, family in transformers, its config, keys, and change of tensors
LLAMAS: dict[str, tuple[Any, ...]] = {
    "arcee": ("arcee", "Arcee", {"attention_bias": True, "mlp_bias": True}, rms, by_neighbours),
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
