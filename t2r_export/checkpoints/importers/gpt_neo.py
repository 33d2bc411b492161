"""GPT-Neo (Black et al. 2021), as TinyStories' models are: GPT-2 with windows in every other layer, whose scores are
not scaled."""

from __future__ import annotations

import re
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.gpt2 import decoder
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.validation import MAX_LAYERS

KEYS = keys(
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


def _config(fields: Fields) -> ModelConfig:
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
    said = fields.get("attention_types", [[[*KINDS], 12]])
    kinds = fields.get("attention_layers", _repeated(fields, said))
    if not isinstance(kinds, list) or len(kinds) != count or not all(kind in KINDS for kind in kinds):
        raise fields.wrong("attention_types", f"{count} names, each one of {', '.join(KINDS)}", said)
    return tuple(SoftmaxConfig() if kind == KINDS[0] else WindowConfig(window, sinks=0) for kind in kinds)


def _repeated(fields: Fields, pairs: Any) -> list[Any]:
    found: list[Any] = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        names, times = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if not isinstance(names, list) or type(times) is not int or len(found) + times * len(names) > MAX_LAYERS:
            raise fields.wrong("attention_types", "pairs of names and a number", pairs)
        found += names * times
    return found


LAYER = "transformer.h.{}"
NAMES = {
    "embedding": "transformer.wte",
    "positions.table": "transformer.wpe",
    "norm": "transformer.ln_f",
    "head": "lm_head",
    "attention.norm": f"{LAYER}.ln_1",
    **{f"attention.{part}": f"{LAYER}.attn.attention.{part}_proj" for part in "qkv"},
    "attention.o": f"{LAYER}.attn.attention.out_proj",
    "dense.norm": f"{LAYER}.ln_2",
    "dense.up": f"{LAYER}.mlp.c_fc",
    "dense.down": f"{LAYER}.mlp.c_proj",
}
GPT_NEO = importer(
    KEYS, _config, NAMES, buffers=re.compile(r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)")
)
