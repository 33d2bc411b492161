"""Llama (Touvron et al. 2023): RMS norm, rotary positions, grouped key/value heads, a gated feed-forward.

SmolLM, TinyLlama and many others are of this family; Qwen2, Qwen3 and Mistral are it with a few options, and read
their files with what stands here. Rotary parameters have moved between keys of config.json over the years; both places
are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, Importer, Source
from t2r_export.config.attention import AttentionConfig, RotaryConfig
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig

# a rope type and the keys that it reads, besides the theta that all have
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def _config(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias", False)
    return decoder(fields, qkv_bias=bias, output_bias=bias, ffn_bias=fields.flag("mlp_bias", False))


def decoder(
    fields: Fields,
    *,
    qkv_bias: bool,
    output_bias: bool,
    ffn_bias: bool = False,
    qk_norm: bool = False,
    head_size: int | None = None,
    layers: tuple[MixerConfig, ...] | None = None,
) -> ModelConfig:
    """What the families of this shape have in common, from their config.json.

    Args:
        head_size: where the file names none; None: the width, divided among the heads.
        layers: None: softmax in all.
    """
    # never part of Llama as transformers computes it, and different arithmetic where a config has them
    fields.only("partial_rotary_factor", 1.0)
    fields.only("rope_interleaved", False)
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads={heads}", kv_heads)
    if fields.get("head_dim") is None and head_size is None and width % heads:
        raise fields.wrong("num_attention_heads", f"a divisor of hidden_size={width}", heads)
    return ModelConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        ffn_size=fields.size("intermediate_size"),
        layers=layers or (SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
        gated_ffn=True,
        position="none",
        tied_head=fields.flag("tie_word_embeddings", False),
        ffn_bias=ffn_bias,
        attention=AttentionConfig(
            heads=heads,
            kv_heads=kv_heads,
            head_size=fields.size("head_dim", head_size or max(1, width // heads)),
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            qk_norm=qk_norm,
            rotary=_rotary(fields),
        ),
    )


def _rotary(fields: Fields) -> RotaryConfig:
    """From rope_parameters, where transformers 5 keeps all, or from rope_theta and rope_scaling, as before."""
    new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
    if new and old and new != old:
        raise fields.wrong("rope_scaling", "absent beside rope_parameters", old)
    theta = fields.number("rope_theta", 10000.0)
    trained = fields.get("max_position_embeddings")
    rope = Fields(new or old, f"the rotary parameters of {fields.where}")
    kind = rope.choice("rope_type", {name: name for name in ROPE_TYPES}, rope.get("type", "default"))
    rope.only("partial_rotary_factor", 1.0)
    theta = rope.number("rope_theta", theta)
    values: dict[str, Any] = {key: rope.number(key) for key in ROPE_TYPES[kind]}
    original = rope.get("original_max_position_embeddings", trained)
    if kind == "llama3":
        values["original_max_positions"] = rope.size("original_max_position_embeddings", original)
    unread = [key for key in rope.unread() if rope.data[key] is not None]
    if unread:
        known = sorted(("rope_theta", *ROPE_TYPES[kind]))
        raise fields.wrong("rotary parameters", f"for the type {kind} of {', '.join(known)}", ", ".join(unread))
    return RotaryConfig(theta=theta, scaling="none" if kind == "default" else kind, **values)


def sliding_layers(fields: Fields, sliding: Callable[[int], bool]) -> tuple[MixerConfig, ...]:
    """Softmax layers, and windows of `sliding_window` tokens without sinks where layer_types says so, or where that
    key is absent, `sliding` does of a layer's number."""
    count = fields.layers("num_hidden_layers")
    known = ("full_attention", "sliding_attention")
    types = fields.get("layer_types")
    if types is None:
        types = [known[sliding(layer)] for layer in range(count)]
    if not isinstance(types, list) or len(types) != count or not all(kind in known for kind in types):
        raise fields.wrong("layer_types", f"{count} names, each one of {', '.join(known)}", types)
    if "sliding_attention" not in types:
        return (SoftmaxConfig(),) * count
    window = WindowConfig(fields.size("sliding_window"), sinks=0)
    return tuple(window if kind == "sliding_attention" else SoftmaxConfig() for kind in types)


def sources(config: ModelConfig) -> dict[str, Source]:
    attention = config.attention
    assert attention is not None
    found = {
        "model.embed_tokens.weight": Source(("embedding.weight",)),
        "model.norm.weight": Source(("norm.weight",)),
    }
    for layer in range(len(config.layers)):
        theirs, ours = f"model.layers.{layer}", f"blocks.{layer}"
        found[f"{theirs}.input_layernorm.weight"] = Source((f"{ours}.norms.0.weight",))
        found[f"{theirs}.post_attention_layernorm.weight"] = Source((f"{ours}.ffn_norm.weight",))
        for part, biased in (
            ("q", attention.qkv_bias),
            ("k", attention.qkv_bias),
            ("v", attention.qkv_bias),
            ("o", attention.output_bias),
        ):
            for kind in ("weight", "bias") if biased else ("weight",):
                found[f"{theirs}.self_attn.{part}_proj.{kind}"] = Source((f"{ours}.mixers.0.{part}.{kind}",))
        if attention.qk_norm:
            for part in "qk":
                found[f"{theirs}.self_attn.{part}_norm.weight"] = Source((f"{ours}.mixers.0.{part}_norm.weight",))
        for part in ("gate", "up", "down"):
            for kind in ("weight", "bias") if config.ffn_bias else ("weight",):
                found[f"{theirs}.mlp.{part}_proj.{kind}"] = Source((f"{ours}.ffn.{part}.{kind}",))
    if not config.tied_head:
        found["lm_head.weight"] = Source(("head.weight",))
    return found


def importer(config: Callable[[Fields], ModelConfig]) -> Importer:
    """An importer of tensors that are named and shaped as Llama's."""
    return Importer(
        config=config,
        sources=sources,
        prefix="model.",
        head="lm_head.weight",
        buffers=re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
    )


LLAMA = importer(_config)
