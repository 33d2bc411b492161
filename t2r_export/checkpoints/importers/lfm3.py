"""LFM3 (Liquid AI 2026): LFM2's gated short convolutions, softmax in every fourth layer and windows in another fourth.

Norms are before and after the parts, and attention has a gate per head. Rotation depends on the layer's kind: softmax
layers use the frequencies of a whole head, of which the last ones are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.lfm2 import CONV, NAMES_OF_LFM2, mixers
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder, with_positions
from t2r_export.checkpoints.importers.rotary import FULL, LENGTH, SHARE, SLIDING, rotary_by_kind
from t2r_export.checkpoints.importers.sources import CONVOLUTION
from t2r_export.config.mixers import MixerConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.scalings import ProportionalScaling

KEYS = keys(
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


def _config(fields: Fields) -> ModelConfig:
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


OURS: dict[str, Any] = {
    **NAMES_OF_LFM2,
    **{name: NAMES[name] for name in ("attention.o", "attention.q_norm", "attention.k_norm")},
    "attention.gate": f"{LAYER}.self_attn.g_proj",
    **dict.fromkeys(("attention.norm_after", "short_conv.norm_after"), f"{LAYER}.post_operator_norm"),
    "dense.norm_after": f"{LAYER}.post_ffn_norm",
}

LFM3 = importer(
    KEYS,
    _config,
    OURS,
    lambda _: {f"{LAYER}.conv.conv.weight": CONVOLUTION},
    renamed={f"{LAYER}.self_attn.gate_proj.weight": f"{LAYER}.self_attn.g_proj.weight"},
)
