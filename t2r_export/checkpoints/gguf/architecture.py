"""What a table of an architecture of GGUF files says, and the keys and changes that many of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.rope import NUMBER, rope_parameters
from t2r_export.checkpoints.importers.sources import ONE_PLUS, permuted

Config = dict[str, Any]
Change = Callable[[Tensor], Tensor]  # as in the file -> as in a Hugging Face folder

ATTENTION = {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"} | {
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
DENSE = {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
EXPERT = "{expert}"  # in a name: an expert's number, of a tensor that stacks them
PIECE = "#"  # before the number of a piece of a tensor's rows; of an expert's, "{expert}." and the number
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
NAMES = {**ATTENTION, **DENSE, **NORMS}
# where the norm before the feed-forward is named after the attention
NAMES_AFTER_ATTENTION = {**ATTENTION, **DENSE} | {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
}
NORMS_AFTER = {**ATTENTION, **DENSE} | {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
EPS, RMS_EPS = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class Architecture:
    """What a value of general.architecture means.

    Attributes:
        config: metadata -> config.json.
        names: tensors of layers without `blk.N.` and the ending, or with it -> their names in a layer of a folder: one,
            several, or one with the number of a piece.
        ends: other tensors, likewise -> full names.
        layer: full name of a layer, with {} for its number.
        changes: config.json -> tensors, named as in `names` and `ends` on either side, with endings or without ->
            their change.
        unused: full names in the file of tensors without an effect.
    """

    config: Callable[[Metadata], Config]
    names: Mapping[str, str | tuple[str, ...]] = field(default_factory=lambda: NAMES)
    ends: Mapping[str, str] = field(default_factory=lambda: ENDS)
    layer: str = "model.layers.{}"
    changes: Callable[[Config], Mapping[str, Change]] = lambda _: {}
    unused: frozenset[str] = frozenset()


def sizes(data: Metadata, model_type: str, eps: str = "rms_norm_eps", lacks: str = "") -> Config:
    """Keys that most config.json have.

    Args:
        eps: the name of the norms' epsilon; of RMS norms if it begins with rms.
        lacks: keys that the family does not have, separated by spaces.
    """
    heads = data.same("attention.head_count")
    width = data.get("embedding_length")
    size = data.get("attention.key_length", int, width // max(heads, 1))
    found = {
        "model_type": model_type,
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": width,
        "num_hidden_layers": data.layers,
        "intermediate_size": data.same("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": data.same("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": data.get("context_length"),
        "rope_parameters": rope_parameters(data, size),
        eps: data.get(RMS_EPS if eps.startswith("rms") else EPS, NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }
    return {key: value for key, value in found.items() if key not in lacks.split()}


def partly_rotated(found: Config) -> Config:
    """A config of a family in which a part of each head rotates if it does not say that all do."""
    found["rope_parameters"].setdefault("partial_rotary_factor", 1.0)
    return found


def biases(data: Metadata) -> Config:
    return {"attention_bias": has(data, "attn_q.bias"), "mlp_bias": has(data, "ffn_up.bias")}


def with_biases(data: Metadata, model_type: str) -> Config:
    return sizes(data, model_type) | biases(data)


def windows(data: Metadata, period: int) -> Config:
    """Keys of a sliding window in all but every `period`-th layer, or in those that a pattern of the file names."""
    key = "attention.sliding_window_pattern"
    if not isinstance(pattern := data.get(key, (int, list), period), list):
        slides = [(layer + 1) % max(pattern, 1) != 0 for layer in range(data.layers)]
    else:
        slides = data.by_layer(key, bool, pattern)
    return {
        "sliding_window": data.get("attention.sliding_window"),
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
    }


def counts(data: Metadata, key: str) -> list[int]:
    """An integer of each layer."""
    return data.by_layer(key, int, None)


def anywhere(data: Metadata, tensor: str) -> bool:
    """Whether any layer has a tensor."""
    return any(name.startswith("blk.") and name.endswith(f".{tensor}") for name in data.tensors)


def sizes_by_layer(data: Metadata, model_type: str) -> tuple[Config, list[int]]:
    """Keys that these families share, and the key heads of each layer: 0 where it has no attention."""
    heads, width = data.same("attention.head_count"), data.get("embedding_length")
    kv_heads = counts(data, "attention.head_count_kv")
    eps = RMS_EPS if data.has(RMS_EPS) else EPS
    size = data.get("attention.key_length", int, width // max(heads, 1))
    return {
        "model_type": model_type,
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": width,
        "num_hidden_layers": len(kv_heads),
        "num_attention_heads": heads,
        "num_key_value_heads": max(kv_heads, default=0),
        "head_dim": size,
        "max_position_embeddings": data.get("context_length"),
        "rope_parameters": rope_parameters(data, size),
        "rms_norm_eps": data.get(eps, NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }, kv_heads


def neighbours(config: Config) -> dict[str, Change]:
    """Rows of q and k from rotation of adjacent dimensions, as ggml's, to rotation of halves."""
    change = permuted((-1, config["head_dim"] // 2, 2), (0, 2, 1)).load
    return {"attn_q": change, "attn_k": change}


def less_one(names: Iterable[str]) -> Callable[[Config], dict[str, Change]]:
    """Weights of norms among these names that scale by 1 + w, of which a file has the sum."""
    changes = {name: ONE_PLUS.store for name in names if name.removesuffix(".weight").endswith("norm")}
    return lambda _: changes


def has(data: Metadata, tensor: str) -> bool:
    """Whether the first layer has a tensor."""
    return f"blk.0.{tensor}" in data.tensors
