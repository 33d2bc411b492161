"""RWKV-7 "Goose" (Peng et al. 2025, arXiv 2503.14456), with the names of flash-linear-attention's folders.

transformers has no class for it.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import LAYER
from t2r_export.checkpoints.importers.sources import ROW, Transform
from t2r_export.config.layer import LayerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import ChannelMixConfig, RWKV7Config

KEYS = keys(
    read={
        "vocab_size": 32000,
        "hidden_size": 2048,
        "hidden_ratio": 4,
        "intermediate_size": None,
        "num_hidden_layers": 24,
        "head_dim": 64,
        "num_heads": None,
        # defaults depend on the library's version
        **{f"{name}_low_rank_dim": None for name in ("decay", "a", "gate", "v")},
        "value_dim": None,
        "norm_first": True,
        "norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    refused={"hidden_act": ("sqrelu",), "norm_bias": (True,), "attn": (None,)},
    harmless="""
    attn_mode fuse_cross_entropy fuse_linear_cross_entropy fuse_norm max_position_embeddings use_l2warp
    """,
)


def config_of(fields: Fields) -> ModelConfig:
    """The model of a config.json's keys."""
    width, count = fields.size("hidden_size"), fields.layers("num_hidden_layers")
    heads, head_size = _heads(fields, width)
    norm = NormConfig("layer", fields.number("norm_eps"))
    ratio = fields.size("hidden_ratio", 4)
    mix = ChannelMixConfig(fields.size("intermediate_size", -(-width * ratio // 32) * 32), norm=norm)
    ranks: dict[str, Any] = {name: fields.size(f"{key}_low_rank_dim") for name, key in RANKS.items()}
    parts = [
        RWKV7Config(
            norm=norm,
            heads=heads,
            head_size=head_size,
            norm_eps=head_size * norm.eps,
            value_rank=fields.size("v_low_rank_dim") if number else 0,
            **ranks,
        )
        for number in range(count)
    ]
    return ModelConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        layers=tuple(LayerConfig(parts=(part, mix)) for part in parts),
        embedding_norm=norm if fields.flag("norm_first") else None,
        last_norm=norm,
        tied_head=fields.flag("tie_word_embeddings"),
    )


RANKS = {"decay_rank": "decay", "erase_rank": "a", "gate_rank": "gate"}


def _heads(fields: Fields, width: int) -> tuple[int, int]:
    """Number and size of heads, which cover the width."""
    count = fields.get("num_heads")
    head_size = fields.size("head_dim", width // fields.size("num_heads") if count else None)
    if width % head_size:
        raise fields.wrong("head_dim", f"a divisor of hidden_size={width}", head_size)
    values = fields.get("value_dim", width)
    if any(value != width for value in (values if isinstance(values, list) else [values])):
        raise fields.wrong("value_dim", f"absent or hidden_size={width}, for each layer", values)
    return width // head_size, head_size


ATTENTION = f"{LAYER}.attn"
LOW_RANK = {"w": "decay", "a": "erase", "v": "value", "g": "gate"}
OURS: dict[str, Any] = {
    "embedding": "model.embeddings",
    "embedding_norm": "model.layers.0.pre_norm",
    "norm": "model.norm",
    "head": "lm_head",
    "rwkv7.norm": f"{LAYER}.attn_norm",
    **{f"rwkv7.{part}": f"{ATTENTION}.{part}_proj" for part in "rkvo"},
    **{f"rwkv7.x_{part}": f"{ATTENTION}.x_{part}" for part in "rwkvag"},
    **{f"rwkv7.{name}": f"{ATTENTION}.{name}" for name in ("k_k", "k_a", "r_k")},
    **{f"rwkv7.{part}1": f"{ATTENTION}.{part}_lora.lora.0" for part in LOW_RANK},
    **{f"rwkv7.{part}2": f"{ATTENTION}.{part}_lora.lora.2" for part in LOW_RANK},
    **{f"rwkv7.{part}0": f"{ATTENTION}.{part}_lora.lora.2.bias" for part in "wav"},
    **{f"rwkv7.norm_{kind}": f"{ATTENTION}.g_norm.{kind}" for kind in ("weight", "bias")},
    "channel_mix.norm": f"{LAYER}.ffn_norm",
    "channel_mix.x_k": f"{LAYER}.ffn.x_k",
    "channel_mix.up": f"{LAYER}.ffn.key",
    "channel_mix.down": f"{LAYER}.ffn.value",
}
FLAT = Transform(lambda x: x[None], lambda x: x[0])  # (D) is our (1, D)
TRANSFORMS = {**{f"{ATTENTION}.x_{part}": ROW for part in "rwkvag"}, f"{LAYER}.ffn.x_k": FLAT}

RWKV7 = importer(KEYS, config_of, OURS, lambda _: TRANSFORMS)
