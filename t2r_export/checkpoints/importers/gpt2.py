"""GPT-2 (Radford et al. 2019): layer norm before each part, learned positions, one packed projection for q, k and v.

Its projections are stored as (inputs, outputs), the transpose of a linear layer's weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.sources import TRANSPOSED
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.uniform import UniformConfig

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


def _config(fields: Fields) -> ModelConfig:
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
    KEYS, _config, NAMES, lambda _: TURNED, buffers=re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")
)
