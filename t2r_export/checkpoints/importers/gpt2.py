"""GPT-2 (Radford et al. 2019): layer norm before each part, learned positions, one packed projection for q, k and v.

Its projections are stored as (inputs, outputs), the transpose of a linear layer's weight.
"""

from __future__ import annotations

import re

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, Importer, Source
from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig


def _config(fields: Fields) -> ModelConfig:
    fields.only("scale_attn_weights", True)
    for feature in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
        fields.only(feature, False)
    width, heads = fields.size("n_embd"), fields.size("n_head")
    if width % heads:
        raise fields.wrong("n_head", f"a divisor of n_embd={width}", heads)
    return ModelConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        ffn_size=fields.size("n_inner", 4 * width),
        layers=(SoftmaxConfig(),) * fields.layers("n_layer"),
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        activation=fields.choice("activation_function", ACTIVATIONS, "gelu_new"),
        position="learned",
        max_positions=fields.size("n_positions"),
        tied_head=fields.flag("tie_word_embeddings", True),
        attention=AttentionConfig(heads=heads, kv_heads=heads, head_size=width // heads),
    )


def _sources(config: ModelConfig) -> dict[str, Source]:
    sources = {
        "transformer.wte.weight": Source(("embedding.weight",)),
        "transformer.wpe.weight": Source(("positions.table.weight",)),
        "transformer.ln_f.weight": Source(("norm.weight",)),
        "transformer.ln_f.bias": Source(("norm.bias",)),
    }
    for layer in range(len(config.layers)):
        theirs, ours = f"transformer.h.{layer}", f"blocks.{layer}"
        for kind in ("weight", "bias"):
            turned = kind == "weight"
            qkv = tuple(f"{ours}.mixers.0.{part}.{kind}" for part in "qkv")
            sources[f"{theirs}.ln_1.{kind}"] = Source((f"{ours}.norms.0.{kind}",))
            sources[f"{theirs}.attn.c_attn.{kind}"] = Source(qkv, turned)
            sources[f"{theirs}.attn.c_proj.{kind}"] = Source((f"{ours}.mixers.0.o.{kind}",), turned)
            sources[f"{theirs}.ln_2.{kind}"] = Source((f"{ours}.ffn_norm.{kind}",))
            sources[f"{theirs}.mlp.c_fc.{kind}"] = Source((f"{ours}.ffn.up.{kind}",), turned)
            sources[f"{theirs}.mlp.c_proj.{kind}"] = Source((f"{ours}.ffn.down.{kind}",), turned)
    if not config.tied_head:
        sources["lm_head.weight"] = Source(("head.weight",))
    return sources


GPT2 = Importer(
    config=_config,
    sources=_sources,
    prefix="transformer.",
    head="lm_head.weight",
    buffers=re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"),
)
