"""Llama (Touvron et al. 2023): RMS norm, rotary positions, grouped key/value heads, a gated feed-forward.

SmolLM, TinyLlama and many others are of this family; further ones differ in a few options (llamas.py, layer_norms.py,
norms_after.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, Importer, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.rotary import FULL, ROTARY, SLIDING, rotary
from t2r_export.checkpoints.importers.sources import ONE_PLUS, Transform, of_neighbours
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.layer import LayerConfig, mixer_of
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import AttentionConfig, PartConfig
from t2r_export.config.positions import PositionConfig
from t2r_export.config.uniform import UniformConfig

LAYER = "model.layers.{}"
MULTIPLE = ("mrope_section", "mrope_interleaved")  # positions of images; in a text all equal the token's
DECODER: dict[str, Any] = {
    **ROTARY,
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "layer_types": None,
}
POSITIONS = {"position_embedding_type": (None, "rope")}  # other values are refused


def decoder(
    fields: Fields,
    layers: tuple[MixerConfig | PartConfig, ...] | None = None,
    *,
    qkv_bias: bool | None = None,
    output_bias: bool | None = None,
    eps: str = "rms_norm_eps",
    ffn: str = "intermediate_size",
    activation: str | None = None,
    rotates: bool = True,
    rope: Mapping[str, Any] = MappingProxyType({}),
    heads: Mapping[str, Any] = MappingProxyType({}),
    **others: Any,
) -> ModelConfig:
    """The config of a Llama-like model, from its config.json.

    Args:
        layers: None: softmax layers only.
        qkv_bias: None: from attention_bias. output_bias: None: as qkv_bias.
        eps, ffn: the keys of the norms' eps and of the feed-forward's size.
        activation: the feed-forward's; None: from hidden_act.
        rotates: whether positions are rotary. rope: arguments of `rotary`.
        heads, others: fields of HeadsConfig and UniformConfig that differ in the family.
    """
    layers = sliding_layers(fields, window=None, stated=False) if layers is None else layers
    qkv_bias = fields.flag("attention_bias") if qkv_bias is None else qkv_bias
    query_heads, kv_heads, head_size = head_sizes(fields)
    shared: dict[str, Any] = {
        "vocab_size": fields.size("vocab_size"),
        "width": fields.size("hidden_size"),
        "layers": layers,
        "norm": "rms",
        "gated_ffn": True,
        "ffn_bias": fields.reads("mlp_bias") and fields.flag("mlp_bias"),
        "activation": activation or fields.choice("hidden_act", ACTIVATIONS),
        "position": "none",
        "tied_head": fields.flag("tie_word_embeddings"),
    }
    if "ffn_size" not in others:
        shared["ffn_size"] = fields.size(ffn)
    if "norm_eps" not in others:
        shared["norm_eps"] = fields.number(eps)
    attention = HeadsConfig(
        heads=query_heads,
        kv_heads=kv_heads,
        head_size=head_size,
        qkv_bias=qkv_bias,
        output_bias=qkv_bias if output_bias is None else output_bias,
        positions=rotary(fields, head_size, **{"others": MULTIPLE, **rope}) if rotates else None,
        **heads,
    )
    return UniformConfig(**{**shared, "attention": attention, **others}).build()


def cap(fields: Fields, key: str) -> float | None:
    """A cap of scores or logits; null: none."""
    return None if fields.get(key) is None else fields.number(key)


def head_sizes(fields: Fields) -> tuple[int, int, int]:
    """Number of query heads, number of key/value heads, and head size."""
    width, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    grouped, own = fields.reads("num_key_value_heads"), fields.reads("head_dim") and fields.get("head_dim") is not None
    kv_heads = fields.divisor("num_key_value_heads", "num_attention_heads", heads) if grouped else heads
    size = fields.size("head_dim") if own else width // fields.divisor("num_attention_heads", "hidden_size")
    return heads, kv_heads, size


def sliding_layers(
    fields: Fields, window: int | None, slides: Callable[[int], bool] = lambda _: True, stated: bool = True
) -> tuple[MixerConfig, ...]:
    """Softmax layers, and windows of `window` tokens without sinks.

    Args:
        window: None: no windows.
        slides: whether the layer of this number has the window, if layer_types is absent.
        stated: layer_types may differ from that; false: transformers ignores it, so it must agree.
    """
    count = fields.layers("num_hidden_layers")
    known = (FULL, SLIDING)
    implied = [known[window is not None and slides(layer)] for layer in range(count)]
    types = fields.kinds("layer_types", known, implied) if fields.reads("layer_types") else implied
    if types != implied and not stated:
        raise fields.wrong("layer_types", f"absent, or {known[window is not None]} for each layer", types)
    if window is None and known[1] in types:
        raise fields.wrong("layer_types", "without sliding_attention, since the config has no window", types)
    return tuple(
        WindowConfig(window, sinks=0) if window is not None and kind == known[1] else SoftmaxConfig() for kind in types
    )


def window_of(fields: Fields) -> int | None:
    """The number of tokens of sliding windows; None: sliding_window is null, or use_sliding_window is false."""
    stated = fields.get("sliding_window") is not None  # marks the key as read, even if it is not used
    used = not fields.reads("use_sliding_window") or fields.flag("use_sliding_window")
    return fields.size("sliding_window") if stated and used else None


def all_but_each(fields: Fields, default: int | None = None) -> Callable[[int], bool]:
    """`slides` of a family in which every sliding_window_pattern-th layer has no window."""
    fields.get("sliding_window_pattern")  # marks the key as read, even if layer_types overrides it
    stated = fields.get("layer_types") is not None
    pattern = 1 if stated else fields.size("sliding_window_pattern", default)
    return lambda layer: (layer + 1) % pattern != 0


def with_positions(model: ModelConfig, positions: Sequence[PositionConfig | None]) -> ModelConfig:
    """The model with other positions of attention, one per layer; ignored in layers without attention."""
    layers = []
    for layer, own in zip(model.layers, positions, strict=True):
        first, *rest = layer.parts
        first = replace(first, positions=own) if isinstance(first, AttentionConfig) else first
        layers.append(LayerConfig(parts=(first, *rest)))
    return replace(model, layers=tuple(layers))


def windows_rotate(model: ModelConfig) -> ModelConfig:
    """The model with the positions of its attention in window layers only."""
    insides = [mixer_of(layer.mixers[0]) for layer in model.layers]
    first = model.heads[0].positions
    return with_positions(model, [first if isinstance(one, WindowConfig) else None for one in insides])


def with_one_norm(model: ModelConfig) -> ModelConfig:
    """The model with feed-forwards beside attention that share its norm."""
    pairs = (layer.parts for layer in model.layers)
    return replace(model, layers=tuple(LayerConfig(parts=(mixer, replace(dense, norm=None))) for mixer, dense in pairs))


def by_neighbours(config: ModelConfig) -> dict[str, Transform]:
    """Transforms of q and k for rotation of adjacent dimensions of a head instead of its halves."""
    return q_and_k(of_neighbours(config))


def q_and_k(transform: Transform) -> dict[str, Transform]:
    """The transform for the projections of q and k."""
    return {f"{NAMES[f'attention.{part}']}.{kind}": transform for part in "qk" for kind in ("weight", "bias")}


def one_plus(names: Mapping[str, str]) -> dict[str, Transform]:
    """Transforms of all norms among these names, for norms that scale by 1 + w."""
    return {f"{theirs}.weight": ONE_PLUS for ours, theirs in names.items() if "norm" in ours}


NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention.norm": f"{LAYER}.input_layernorm",
    **{f"attention.{part}": f"{LAYER}.self_attn.{part}_proj" for part in "qkvo"},
    **{f"attention.{part}_norm": f"{LAYER}.self_attn.{part}_norm" for part in "qk"},
    "dense.norm": f"{LAYER}.post_attention_layernorm",
    **{f"dense.{part}": f"{LAYER}.mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def family(
    read: Mapping[str, Any],
    config: Callable[[Fields], ModelConfig] = decoder,
    names: Mapping[str, str] = NAMES,
    *,
    lacks: str = "",
    refused: Mapping[str, tuple[Any, ...]] = POSITIONS,
    harmless: str = "",
    aliases: Mapping[str, str] = MappingProxyType({}),
    **others: Any,
) -> Importer:
    """An importer of a family with the keys of DECODER, and tensors with Llama's names or with `names`.

    Args:
        read: its further keys, and its own defaults.
        lacks: keys of DECODER that it does not have, separated by spaces.
        refused, harmless, aliases: as in `keys`. others: arguments of `importer`.
    """
    own = {key: default for key, default in DECODER.items() if key not in lacks.split()}
    return importer(keys({**own, **read}, refused, harmless, aliases), config, names, **others)


LLAMA = family(
    {"attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2},
    harmless="pretraining_tp",  # the same products, split
)
