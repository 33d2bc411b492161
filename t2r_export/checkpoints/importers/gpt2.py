"""GPT-2 (Radford et al. 2019): layer norm before each part, learned positions, one packed projection for q, k and v;
and two families with its layers.

GPT-2's projections are stored as (inputs, outputs), the transpose of a linear layer's weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.gpt_neox import packed_by_heads
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.sources import TRANSPOSED
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.config.validation import MAX_LAYERS

KEYS = keys(
    read={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    refused={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "position_embedding_type": (None, "absolute"),
    },
    harmless="""
    attn_pdrop embd_pdrop n_ctx reorder_and_upcast_attn resid_pdrop summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj
    """,
    aliases={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
)


def decoder(
    fields: Fields,
    layers: tuple[MixerConfig, ...],
    heads: str,
    width: str = "hidden_size",
    ffn: str | None = None,
    attention: Mapping[str, Any] = MappingProxyType({}),
    **others: Any,
) -> ModelConfig:
    """The config of a model with GPT-2's layers.

    Args:
        heads, width, ffn: keys of sizes; without ffn, or if it is null, the feed-forward has four times the width.
        attention, others: fields of HeadsConfig and UniformConfig that differ in the family.
    """
    size, count = fields.size(width), fields.divisor(heads, width)
    return UniformConfig(
        vocab_size=fields.size("vocab_size"),
        width=size,
        ffn_size=4 * size if ffn is None else fields.size(ffn, 4 * size),
        layers=layers,
        norm_eps=fields.number("layer_norm_epsilon"),
        tied_head=fields.flag("tie_word_embeddings"),
        attention=HeadsConfig(heads=count, kv_heads=count, head_size=size // count, **attention),
        **others,
    ).build()


def _gpt2(fields: Fields) -> ModelConfig:
    return decoder(
        fields,
        (SoftmaxConfig(),) * fields.layers("n_layer"),
        "n_head",
        "n_embd",
        "n_inner",
        activation=fields.choice("activation_function", ACTIVATIONS),
        max_positions=fields.size("n_positions"),
    )


LAYER = "transformer.h.{}"
NAMES = {
    "embedding": "transformer.wte",
    "positions.table": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention.norm": f"{LAYER}.ln_1",
    **{f"attention.{part}": f"{LAYER}.attn.c_attn" for part in "qkv"},
    "attention.o": f"{LAYER}.attn.c_proj",
    "dense.norm": f"{LAYER}.ln_2",
    "dense.up": f"{LAYER}.mlp.c_fc",
    "dense.down": f"{LAYER}.mlp.c_proj",
}
TURNED = {f"{LAYER}.{name}.weight": TRANSPOSED for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}

GPT2 = importer(
    KEYS, _gpt2, NAMES, lambda _: TURNED, buffers=re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")
)


# GPT-Neo (Black et al. 2021), as TinyStories' models are: windows in every other layer, and scores that are not scaled
KEYS_OF_NEO = keys(
    read={
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
        "hidden_size": 2048,
        "num_layers": 24,
        "attention_layers": None,
        "attention_types": None,
        "num_heads": 16,
        "intermediate_size": None,
        "window_size": 256,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    harmless="""
    embed_dropout resid_dropout summary_activation summary_first_dropout summary_proj_to_labels
    summary_type summary_use_proj
    """,
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
)
KINDS = ("global", "local")


def _gpt_neo(fields: Fields) -> ModelConfig:
    return decoder(
        fields,
        _layers(fields),
        "num_heads",
        ffn="intermediate_size",
        attention={"qkv_bias": False, "scale": 1.0},
        activation=fields.choice("activation_function", ACTIVATIONS),
        max_positions=fields.size("max_position_embeddings"),
    )


def _layers(fields: Fields) -> tuple[MixerConfig, ...]:
    """Mixers from attention_layers, or from attention_types: names and their repetition counts."""
    count, window = fields.layers("num_layers"), fields.size("window_size")
    types = fields.get("attention_types", [[[*KINDS], 12]])
    kinds = fields.get("attention_layers", _repeated(fields, types))
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in KINDS for kind in kinds):
        raise fields.wrong("attention_types", f"{count} names, each one of {', '.join(KINDS)}", types)
    return tuple(SoftmaxConfig() if kind == KINDS[0] else WindowConfig(window, sinks=0) for kind in kinds)


def _repeated(fields: Fields, pairs: Any) -> list[Any]:
    found: list[Any] = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        names, times = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if not isinstance(names, list) or type(times) is not int or len(found) + times * len(names) > MAX_LAYERS:
            raise fields.wrong("attention_types", "pairs of names and a number", pairs)
        found += names * times
    return found


NAMES_OF_NEO = {
    **NAMES,
    **{f"attention.{part}": f"{LAYER}.attn.attention.{part}_proj" for part in "qkv"},
    "attention.o": f"{LAYER}.attn.attention.out_proj",
}
GPT_NEO = importer(
    KEYS_OF_NEO, _gpt_neo, NAMES_OF_NEO, buffers=re.compile(r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)")
)


# BLOOM (BigScience Workshop 2022, arXiv 2211.05100): softmax with linear biases, and a layer norm of the embeddings.
# Rows of the packed projection are grouped by head: its query, key and value
KEYS_OF_BLOOM = keys(
    read={
        "vocab_size": 250880,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 8,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    # transformers omits biases if slow_but_exact is true
    refused={"apply_residual_connection_post_layernorm": (False,), "slow_but_exact": (False,)},
    harmless="hidden_dropout offset_alibi pretraining_tp seq_length skip_bias_add skip_bias_add_qkv",
    aliases={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
)


def _bloom(fields: Fields) -> ModelConfig:
    layers = (SoftmaxConfig(),) * fields.layers("n_layer")
    return decoder(fields, layers, "n_head", position="alibi", embedding_norm=True)


PACKED = f"{LAYER}.self_attention.query_key_value"
NAMES_OF_BLOOM = {
    "embedding": "transformer.word_embeddings",
    "embedding_norm": "transformer.word_embeddings_layernorm",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention.norm": f"{LAYER}.input_layernorm",
    **{f"attention.{part}": PACKED for part in "qkv"},
    "attention.o": f"{LAYER}.self_attention.dense",
    "dense.norm": f"{LAYER}.post_attention_layernorm",
    "dense.up": f"{LAYER}.mlp.dense_h_to_4h",
    "dense.down": f"{LAYER}.mlp.dense_4h_to_h",
}


BLOOM = importer(KEYS_OF_BLOOM, _bloom, NAMES_OF_BLOOM, packed_by_heads(PACKED))
