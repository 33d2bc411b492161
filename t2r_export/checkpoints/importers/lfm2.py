"""LFM2 (Liquid AI 2025, arXiv 2511.23404): gated short convolutions, and Qwen3's attention in a few layers."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.rotary import FULL
from t2r_export.checkpoints.importers.sources import CONVOLUTION
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig, ShortConvConfig
from t2r_export.config.validation import MAX_WHOLE

READ: dict[str, Any] = {
    **{key: value for key, value in DECODER.items() if key not in ("hidden_act", "rms_norm_eps")},
    "vocab_size": 65536,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "rope_theta": 1e6,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "full_attn_idxs": None,
}
KEYS = keys(
    read=READ,
    refused={"block_use_swiglu": (True,), "use_pos_enc": (True,)},
    # repeat other keys, or set the initialization of weights
    harmless="""
    block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_xavier_init conv_dim conv_dim_out
    conv_use_xavier_init num_heads
    """,
    aliases={"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
)
CONV = "conv"
NAMES_OF_LFM2 = {
    **NAMES,
    "norm": "model.embedding_norm",
    **dict.fromkeys(("attention.norm", "short_conv.norm"), f"{LAYER}.operator_norm"),
    "attention.o": f"{LAYER}.self_attn.out_proj",
    **{f"attention.{part}_norm": f"{LAYER}.self_attn.{part}_layernorm" for part in "qk"},
    "short_conv.projection": f"{LAYER}.conv.in_proj",
    "short_conv.conv": f"{LAYER}.conv.conv",
    "short_conv.o": f"{LAYER}.conv.out_proj",
    "dense.norm": f"{LAYER}.ffn_norm",
    "dense.gate": f"{LAYER}.feed_forward.w1",
    "dense.up": f"{LAYER}.feed_forward.w3",
    "dense.down": f"{LAYER}.feed_forward.w2",
}


def _config(fields: Fields) -> ModelConfig:
    return decoder(
        fields,
        mixers(fields, fields.kinds("layer_types", (CONV, FULL), _implied(fields))),
        qkv_bias=False,
        output_bias=False,
        heads={"qk_norm": True},
        eps="norm_eps",
        activation="silu",
        ffn_size=_ffn_size(fields),
    )


def _implied(fields: Fields) -> list[str]:
    """Kinds of layers from the numbers of those with attention; by default all have it."""
    count = fields.layers("num_hidden_layers")
    numbers = fields.get("full_attn_idxs", [*range(count)])
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise fields.wrong("full_attn_idxs", "numbers of layers", numbers)
    return [FULL if number in numbers else CONV for number in range(count)]


def mixers(fields: Fields, kinds: list[str], **others: MixerConfig) -> tuple[MixerConfig | PartConfig, ...]:
    """Short convolutions, softmax, and `others` by their kind."""
    conv = ShortConvConfig(fields.size("conv_L_cache", least=2), fields.flag("conv_bias"))
    known: dict[str, MixerConfig | PartConfig] = {CONV: conv, FULL: SoftmaxConfig(), **others}
    return tuple(known[kind] for kind in kinds)


def _ffn_size(fields: Fields) -> int:
    """The hidden size: two thirds of the config's value, times a factor, rounded up to a multiple, unless disabled.

    A null multiplier skips factor and rounding.
    """
    size, multiple = fields.size("intermediate_size"), fields.size("block_multiple_of")
    factor = None if fields.get("block_ffn_dim_multiplier") is None else fields.number("block_ffn_dim_multiplier")
    if not fields.flag("block_auto_adjust_ff_dim"):
        return size
    size = int(2 * size / 3)
    if factor is None:
        return size
    if factor * size > MAX_WHOLE:
        raise fields.wrong("block_ffn_dim_multiplier", f"a factor for sizes of at most {MAX_WHOLE}", factor)
    return -(-int(factor * size) // multiple) * multiple


LFM2 = importer(KEYS, _config, NAMES_OF_LFM2, lambda _: {f"{LAYER}.conv.conv.weight": CONVOLUTION})
