"""Architectures of GGUF files: their keys and tensors, as config.json and safetensors of a family have them.

llama.cpp's converters write a model's keys under other names, and change a few tensors. The table undoes that, so that
the importers of Hugging Face folders read the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.rope import NUMBER, rope_parameters
from t2r_export.checkpoints.importers.sources import in_heads

Config = dict[str, Any]
Change = Callable[[Tensor], Tensor]  # as in the file -> as in a Hugging Face folder

ATTENTION = {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"} | {
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
DENSE = {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
NAMES = {**ATTENTION, **DENSE, **NORMS}
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class Architecture:
    """What a value of general.architecture means.

    Attributes:
        config: metadata -> config.json.
        names: tensors of layers without `blk.N.` and the ending -> their names in a layer of a folder.
        ends: other tensors, likewise -> full names.
        layer: full name of a layer, with {} for its number.
        changes: config.json -> tensors, named as in `names` and `ends`, with endings or without -> their change.
    """

    config: Callable[[Metadata], Config]
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    ends: Mapping[str, str] = field(default_factory=lambda: ENDS)
    layer: str = "model.layers.{}"
    changes: Callable[[Config], Mapping[str, Change]] = lambda _: {}


def sizes(data: Metadata, model_type: str, eps: str = "rms_norm_eps", theta: float = 10000.0) -> Config:
    """Keys that most config.json have. Args: eps: the name of the norms' epsilon. theta: of files without one."""
    heads = data.same("attention.head_count")
    width = data.get("embedding_length")
    size = data.get("attention.key_length", int, width // max(heads, 1))
    epsilon = "attention.layer_norm_rms_epsilon" if eps == "rms_norm_eps" else "attention.layer_norm_epsilon"
    return {
        "model_type": model_type,
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": width,
        "num_hidden_layers": data.get("block_count"),
        "intermediate_size": data.same("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": data.same("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": data.get("context_length"),
        "rope_parameters": rope_parameters(data, size, theta),
        eps: data.get(epsilon, NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }


def neighbours(config: Config) -> dict[str, Change]:
    """Rows of q and k from rotation of adjacent dimensions, as ggml's, to rotation of halves."""
    size = config["head_dim"]
    change = in_heads([*range(0, size, 2), *range(1, size, 2)]).load
    return {"attn_q": change, "attn_k": change}


def _llama(data: Metadata) -> Config:
    biases = "blk.0.attn_q.bias" in data.tensors
    return sizes(data, "llama") | {"attention_bias": biases, "mlp_bias": "blk.0.ffn_up.bias" in data.tensors}


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(_llama, changes=neighbours),
}
