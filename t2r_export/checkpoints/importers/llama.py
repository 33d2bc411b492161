"""Llama (Touvron et al. 2023): RMS norm, rotary positions, grouped key/value heads, a gated feed-forward.

SmolLM, TinyLlama and many others are of this family. Rotary parameters have moved between keys of config.json over
the years; both places are read.
"""

from __future__ import annotations

import re
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, Importer, Source
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig, RotaryConfig

# a rope type and the keys that it reads, besides the theta that all have
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def _config(fields: Fields) -> ModelConfig:
    # never part of Llama as transformers computes it, and different arithmetic where a config has them
    fields.only("partial_rotary_factor", 1.0)
    fields.only("rope_interleaved", False)
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads={heads}", kv_heads)
    if fields.get("head_dim") is None and width % heads:
        raise fields.wrong("num_attention_heads", f"a divisor of hidden_size={width}", heads)
    attention_bias = fields.flag("attention_bias", False)
    return ModelConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=fields.size("head_dim", max(1, width // heads)),
        ffn_size=fields.size("intermediate_size"),
        layers=(SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        norm="rms",
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation=fields.choice("hidden_act", ACTIVATIONS, "silu"),
        gated_ffn=True,
        position="rotary",
        rotary=_rotary(fields),
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        ffn_bias=fields.flag("mlp_bias", False),
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


def _sources(config: ModelConfig) -> dict[str, Source]:
    sources = {
        "model.embed_tokens.weight": Source(("embedding.weight",)),
        "model.norm.weight": Source(("norm.weight",)),
    }
    for layer in range(len(config.layers)):
        theirs, ours = f"model.layers.{layer}", f"blocks.{layer}"
        sources[f"{theirs}.input_layernorm.weight"] = Source((f"{ours}.norm1.weight",))
        sources[f"{theirs}.post_attention_layernorm.weight"] = Source((f"{ours}.norm2.weight",))
        for part, biased in (
            ("q", config.qkv_bias),
            ("k", config.qkv_bias),
            ("v", config.qkv_bias),
            ("o", config.output_bias),
        ):
            for kind in ("weight", "bias") if biased else ("weight",):
                sources[f"{theirs}.self_attn.{part}_proj.{kind}"] = Source((f"{ours}.mixer.{part}.{kind}",))
        for part in ("gate", "up", "down"):
            for kind in ("weight", "bias") if config.ffn_bias else ("weight",):
                sources[f"{theirs}.mlp.{part}_proj.{kind}"] = Source((f"{ours}.ffn.{part}.{kind}",))
    if not config.tied_head:
        sources["lm_head.weight"] = Source(("head.weight",))
    return sources


LLAMA = Importer(
    config=_config,
    sources=_sources,
    prefix="model.",
    head="lm_head.weight",
    buffers=re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)
