"""Families of flash-linear-attention, of which transformers has no classes.

A layer is linear attention and a gated feed-forward, each behind an RMS norm. Layers of softmax attention among them
(`attn`) and attention over the residual stream (`attnres_block_size`) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import LAYER
from t2r_export.checkpoints.importers.sources import CONVOLUTION
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import (
    DeltaNetConfig,
    GatedDeltaConfig,
    GLAConfig,
    KDAConfig,
    LinearPartConfig,
    RetentionConfig,
)
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig

READ: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "hidden_ratio": 4,
    "intermediate_size": None,
    "num_hidden_layers": 24,
    "conv_size": 4,
    "norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
REFUSED: dict[str, tuple[Any, ...]] = {
    "attn": (None,),
    "attnres_block_size": (None,),
    "hidden_act": ("swish",),
    "conv_bias": (None, False),
}
# other kernels for the same function
HARMLESS = """
attn_mode fuse_cross_entropy fuse_linear_cross_entropy fuse_norm fuse_swiglu max_position_embeddings use_l2warp
"""
ATTENTION = f"{LAYER}.attn"
QKV, CONV = f"{ATTENTION}.qkv_proj.weight", f"{ATTENTION}.qkv_conv1d.weight"
JOINED = {
    whole: tuple(whole.replace("qkv", part) for part in ("q", "k", "v"))  # files store these separately
    for whole in (QKV, CONV)
}
MULTIPLE = 256  # the feed-forward's default size is a multiple of this


def stacked(fields: Fields, part: LinearPartConfig) -> ModelConfig:
    """A model with this part and a feed-forward per layer."""
    width = fields.size("hidden_size")
    implied = int(width * fields.size("hidden_ratio", 4) * 2 / 3)
    return UniformConfig(
        vocab_size=fields.size("vocab_size"),
        width=width,
        ffn_size=fields.size("intermediate_size", -(-implied // MULTIPLE) * MULTIPLE),
        layers=(part,) * fields.layers("num_hidden_layers"),
        norm="rms",
        norm_eps=fields.number("norm_eps"),
        gated_ffn=True,
        ffn_bias=False,
        activation="silu",
        position="none",
        tied_head=fields.flag("tie_word_embeddings"),
    ).build()


def taps(fields: Fields) -> int:
    """Kernel size of the convolutions; 0: none."""
    fields.get("conv_size")  # marks the key as read
    return fields.size("conv_size", least=2) if fields.flag("use_short_conv") else 0


def expanded(fields: Fields, key: str, size: int, parts: int = 1) -> int:
    """`size` times the factor of that key, divided by `parts`."""
    whole = round(size * fields.number(key))
    if abs(whole - size * fields.number(key)) > 1e-5 * whole or whole % parts or not whole:
        among = f" that num_heads={parts} divides" if parts > 1 else ""
        raise fields.wrong(key, f"a factor of {size} that gives an integer{among}", fields.get(key))
    return whole // parts


def of_width(fields: Fields) -> dict[str, Any]:
    """Sizes of heads that sum to `expand_k` and `expand_v` times the width."""
    width, heads = fields.size("hidden_size"), fields.size("num_heads")
    return {
        "heads": heads,
        "key_heads": heads,
        "key_size": expanded(fields, "expand_k", width, heads),
        "value_size": expanded(fields, "expand_v", width, heads),
    }


def of_heads(fields: Fields) -> dict[str, Any]:
    """Sizes of heads from `head_dim`; there may be more value heads than key heads."""
    key_heads, size = fields.size("num_heads"), fields.size("head_dim")
    heads = fields.size("num_v_heads", key_heads)
    if heads % key_heads:
        raise fields.wrong("num_v_heads", f"a multiple of num_heads={key_heads}", heads)
    return {"heads": heads, "key_heads": key_heads, "key_size": size, "value_size": expanded(fields, "expand_v", size)}


def own_keys(fields: Fields) -> None:
    """Refuse keys and values shared by several heads."""
    heads = fields.size("num_heads")
    if fields.size("num_kv_heads", heads) != heads:
        raise fields.wrong("num_kv_heads", f"absent or num_heads={heads}", fields.get("num_kv_heads"))


def family(
    config: Callable[[Fields], ModelConfig],
    kind: str,
    names: Mapping[str, str],
    read: Mapping[str, Any],
    refused: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> Importer:
    """An importer of models of one kind of part.

    Args:
        names: the part's weights other than q, k, v and o -> theirs in a layer's `attn`.
        read, refused: keys that override the common ones.
    """
    ours = {
        "embedding": "model.embeddings",
        "norm": "model.norm",
        "head": "lm_head",
        f"{kind}.norm": f"{LAYER}.attn_norm",
        f"{kind}.qkv.weight": QKV,
        f"{kind}.conv.weight": CONV,
        f"{kind}.o": f"{ATTENTION}.o_proj",
        **{f"{kind}.{own}": f"{ATTENTION}.{theirs}" for own, theirs in names.items()},
        "dense.norm": f"{LAYER}.mlp_norm",
        **{f"dense.{part}": f"{LAYER}.mlp.{part}_proj" for part in ("gate", "up", "down")},
    }
    return importer(
        keys(read={**READ, **read}, refused={**REFUSED, **refused}, harmless=HARMLESS),
        config,
        ours,
        lambda _: {CONV: CONVOLUTION},
        buffers=re.compile(r"model\.layers\.\d+\.attn\.rotary\.inv_freq"),
        joined=lambda _: JOINED,
        renamed=renamed,
    )


def _of_delta(fields: Fields) -> dict[str, Any]:
    """Options of the parts with a delta rule."""
    return {
        "taps": taps(fields),
        "norm_eps": fields.number("norm_eps"),
        "allow_neg_eigval": fields.flag("allow_neg_eigval"),
    }


def _of_gla(fields: Fields) -> dict[str, Any]:
    """Options of the parts of GLA and RetNet."""
    own_keys(fields)
    return {
        **of_width(fields),
        "taps": taps(fields),
        "norm_eps": fields.number("norm_eps"),
        "gate": "silu" if fields.flag("use_output_gate") else "none",
    }


def _delta_net(fields: Fields) -> ModelConfig:
    gate = "silu" if fields.flag("use_gate") else "none"
    return stacked(fields, DeltaNetConfig(**of_width(fields), **_of_delta(fields), gate=gate))


def _gated_deltanet(fields: Fields) -> ModelConfig:
    opening = fields.choice("output_gate_activation", {"swish": "silu", "silu": "silu", "sigmoid": "sigmoid"})
    gate = opening if fields.flag("use_gate") else "none"
    return stacked(fields, GatedDeltaConfig(**of_heads(fields), **_of_delta(fields), gate=gate))


def _kda(fields: Fields) -> ModelConfig:
    sizes = of_heads(fields)
    rank = sizes["value_size"]
    return stacked(fields, KDAConfig(**sizes, **_of_delta(fields), decay_rank=rank, gate_rank=rank, gate_bias=True))


OF_GLA: dict[str, Any] = {
    "num_heads": 4,
    "num_kv_heads": None,
    "expand_k": 0.5,
    "expand_v": 1.0,
    "use_short_conv": False,
    "use_output_gate": True,
}
NOT_GLA: dict[str, tuple[Any, ...]] = {"feature_map": (None,), "elementwise_affine": (True,)}  # refused
NAMES_OF_DELTA = {"z": "g_proj", "b": "b_proj", "norm_weight": "o_norm.weight"}
NAMES_OF_GLA = {"z": "g_proj", "norm_weight": "g_norm_swish_gate.weight"}
FUSED, APART = (f"{ATTENTION}.{name}.weight" for name in ("g_norm_swish_gate", "g_norm"))
RENAMED = {APART: FUSED}  # without fuse_norm, and without an output gate

# DeltaNet (Yang et al. 2024, arXiv 2406.06484)
DELTA_NET = family(
    _delta_net,
    "delta_net",
    NAMES_OF_DELTA,
    {
        "num_heads": 16,
        "expand_k": 1.0,
        "expand_v": 1.0,
        "use_gate": False,
        "use_short_conv": True,
        "allow_neg_eigval": False,
    },
    {"qk_norm": ("l2",), "qk_activation": ("silu",), "use_beta": (True,), "use_output_norm": (True,)},
)
# Gated delta nets (Yang et al. 2024, arXiv 2412.06464)
GATED_DELTANET = family(
    _gated_deltanet,
    "gated_delta",
    {**NAMES_OF_DELTA, "a": "a_proj", "A_log": "A_log", "dt_bias": "dt_bias"},
    {
        "num_hidden_layers": 21,
        "num_heads": 6,
        "num_v_heads": None,
        "head_dim": 256,
        "expand_v": 2.0,
        "use_gate": True,
        "output_gate_activation": "swish",
        "use_short_conv": True,
        "allow_neg_eigval": False,
    },
)
# Gated linear attention (Yang et al. 2024, arXiv 2312.06635)
GLA = family(
    lambda fields: stacked(fields, GLAConfig(**_of_gla(fields))),
    "gla",
    {**NAMES_OF_GLA, "a1": "gk_proj.0", "a2": "gk_proj.1"},
    OF_GLA,
    {**NOT_GLA, "clamp_min": (None,), "use_gk": (True,), "use_gv": (False,)},
    RENAMED,
)
# Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692)
KDA = family(
    _kda,
    "kda",
    {
        "b": "b_proj",
        **{f"a{place + 1}": f"f_proj.{place}" for place in (0, 1)},
        **{f"z{place + 1}": f"g_proj.{place}" for place in (0, 1)},
        **{name: name for name in ("A_log", "dt_bias")},
        "norm_weight": "o_norm.weight",
    },
    {
        "num_heads": 16,
        "num_v_heads": None,
        "head_dim": 128,
        "expand_v": 1.0,
        "use_short_conv": True,
        "allow_neg_eigval": False,
    },
    {"safe_gate": (False,), "lower_bound": (None,)},
)
# RetNet (Sun et al. 2023, arXiv 2307.08621): rotary positions without xpos scaling, and an RMS norm per head
RETNET = family(
    lambda fields: stacked(fields, RetentionConfig(**_of_gla(fields), positions=RotaryConfig())),
    "retention",
    NAMES_OF_GLA,
    {**OF_GLA, "num_heads": 8, "expand_k": 1.0, "expand_v": 2.0, "hidden_ratio": 2},
    NOT_GLA,
    RENAMED,
)
