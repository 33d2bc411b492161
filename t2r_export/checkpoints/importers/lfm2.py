"""LFM2 (Liquid AI 2025, arXiv 2511.23404): gated short convolutions, and Qwen3's attention in a few layers; LFM2 with
experts, whose feed-forwards, except the first, are experts; and LFM3 (Liquid AI 2026).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.experts import experts, with_experts, with_moe
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder, with_positions
from t2r_export.checkpoints.importers.rotary import FULL, LENGTH, SHARE, SLIDING, rotary_by_kind
from t2r_export.checkpoints.importers.sources import CONVOLUTION
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig, ShortConvConfig
from t2r_export.config.scalings import ProportionalScaling
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
TRANSFORMS = {f"{LAYER}.conv.conv.weight": CONVOLUTION}


def _lfm2(fields: Fields) -> ModelConfig:
    layers = mixers(fields, fields.kinds("layer_types", (CONV, FULL), _implied(fields)))
    return _decoder(fields, layers, ffn_size=_ffn_size(fields))


def _decoder(fields: Fields, layers: tuple[MixerConfig | PartConfig, ...], **others: Any) -> ModelConfig:
    options: dict[str, Any] = {"qkv_bias": False, "output_bias": False, "heads": {"qk_norm": True}, **others}
    return decoder(fields, layers, eps="norm_eps", activation="silu", **options)


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


LFM2 = importer(KEYS, _lfm2, NAMES_OF_LFM2, lambda _: TRANSFORMS)


KEYS_OF_MOE = keys(
    read={
        **{key: value for key, value in READ.items() if not key.startswith("block_") and key != "full_attn_idxs"},
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_hidden_layers": 32,
        "layer_types": None,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    refused={"output_router_logits": (None, False)},
    aliases={"tie_embedding": "tie_word_embeddings", "num_local_experts": "num_experts"},
)
WEIGHTS_EPS = 1e-6  # constant in transformers' class


def _lfm2_moe(fields: Fields) -> ModelConfig:
    layers, normed = mixers(fields, fields.kinds("layer_types", (CONV, FULL))), fields.flag("norm_topk_prob")
    each = experts(
        fields,
        "num_experts",
        "moe_intermediate_size",
        normed,
        activation="silu",
        router="sigmoid",
        choice_bias=fields.flag("use_expert_bias"),
        scale=fields.number("routed_scaling_factor"),
        eps=WEIGHTS_EPS if normed else 0.0,
    )
    dense = fields.size("num_dense_layers", least=0)
    return with_moe(_decoder(fields, layers), each, [number >= dense for number in range(len(layers))])


LFM2_MOE = with_experts(
    KEYS_OF_MOE,
    _lfm2_moe,
    {
        **NAMES_OF_LFM2,
        "moe.norm": f"{LAYER}.ffn_norm",
        "moe.choice_bias": f"{LAYER}.feed_forward.expert_bias",
    },
    lambda _: TRANSFORMS,
    where=f"{LAYER}.feed_forward",
    matrices=("w1", "w3", "w2"),
)


# LFM3: softmax in every fourth layer and windows in another fourth. Norms are before and after the parts, and attention
# has a gate per head. Rotation depends on the layer's kind: softmax layers use the frequencies of a whole head, of
# which the last ones are 0
KEYS_OF_LFM3 = keys(
    read={
        **{key: value for key, value in DECODER.items() if key not in ("hidden_act", "rms_norm_eps", LENGTH)},
        "vocab_size": 128000,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 128000,
        "rope_theta": 1e6,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "conv_bias": False,
        "conv_L_cache": 7,
        "sliding_window": 256,
        "use_sandwich_norm": True,
        "use_attention_gate": True,
        "bos_token_id": 124894,
        "eos_token_id": 124900,
    },
    aliases={"rms_norm_eps": "norm_eps"},
)
ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, SHARE: 0.5},
}


def _lfm3(fields: Fields) -> ModelConfig:
    layers, gate = _layers(fields), fields.flag("use_attention_gate")
    model = decoder(
        fields,
        layers,
        rotates=False,
        heads={"qk_norm": True, "gate": gate, "gate_per_head": gate},
        eps="norm_eps",
        activation="silu",
        norm_position="both" if fields.flag("use_sandwich_norm") else "pre",
    )
    if fields.get("rope_parameters") is None:
        fields.data["rope_parameters"] = ROPE
    types = {"proportional": _proportional}
    head_size, theta = fields.size("head_dim"), "rope_theta"
    return with_positions(model, rotary_by_kind(fields, layers, head_size, theta, types=types))


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    count = fields.layers("num_hidden_layers")
    implied = [FULL if n % 4 == 2 else SLIDING if n % 4 == 0 and n > 0 else CONV for n in range(count)]
    types = fields.kinds("layer_types", (CONV, FULL, SLIDING), implied)
    needed = fields.get("sliding_window") is not None or SLIDING in types
    return mixers(fields, types, **{SLIDING: WindowConfig(fields.size("sliding_window"), sinks=0)} if needed else {})


def _proportional(rope: Fields, length: Callable[[], int], trained: Any) -> ProportionalScaling:
    factor = 1.0 if rope.get("factor") is None else rope.number("factor")
    share = 1.0 if rope.get(SHARE) is None else rope.number(SHARE)
    rope.data.pop(SHARE, None)  # not a share of the head here
    return ProportionalScaling(share, factor)


NAMES_OF_LFM3: dict[str, Any] = {
    **NAMES_OF_LFM2,
    **{name: NAMES[name] for name in ("attention.o", "attention.q_norm", "attention.k_norm")},
    "attention.gate": f"{LAYER}.self_attn.g_proj",
    **dict.fromkeys(("attention.norm_after", "short_conv.norm_after"), f"{LAYER}.post_operator_norm"),
    "dense.norm_after": f"{LAYER}.post_ffn_norm",
}

LFM3 = importer(
    KEYS_OF_LFM3,
    _lfm3,
    NAMES_OF_LFM3,
    lambda _: TRANSFORMS,
    renamed={f"{LAYER}.self_attn.gate_proj.weight": f"{LAYER}.self_attn.g_proj.weight"},
)
