"""Qwen3.5's text model: gated delta nets, and gated attention in every fourth layer.

A checkpoint of text and images wraps the same decoder: its config is in text_config, its tensors have a longer prefix.
Vision tensors and layers that draft tokens (mtp) are ignored. Norms scale by 1 + w, those of the delta nets' outputs by
w. Rows of q_proj are grouped by head: its query, then its gate.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.llama import DECODER, LAYER, NAMES, decoder
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.checkpoints.importers.sources import CONVOLUTION, ONE_PLUS, Transform, permuted
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import GatedDeltaConfig, PartConfig

READ: dict[str, Any] = {
    **DECODER,
    **PARTIAL,
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "full_attention_interval": None,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
SHAPE = {"attn_output_gate": (None, True), "mlp_only_layers": (None, [])}  # fixed in transformers' class
HARMLESS = "mamba_ssm_dtype mtp_num_hidden_layers mtp_use_dedicated_embeddings"
OUTSIDE = "image_token_id video_token_id vision_config vision_end_token_id vision_start_token_id"  # for images
DELTA = f"{LAYER}.linear_attn"
NAMES_OF_QWEN = {
    **NAMES,
    "attention.gate": NAMES["attention.q"],
    "gated_delta.norm": NAMES["attention.norm"],
    **{f"gated_delta.{part}": f"{DELTA}.in_proj_{part}" for part in ("qkv", "z", "b", "a")},
    **{f"gated_delta.{name}": f"{DELTA}.{name}" for name in ("A_log", "dt_bias")},
    "gated_delta.conv": f"{DELTA}.conv1d",
    "gated_delta.norm_weight": f"{DELTA}.norm.weight",
    "gated_delta.o": f"{DELTA}.out_proj",
}
KINDS = ("linear_attention", "full_attention")


def decoder_of(fields: Fields, ffn: str = "intermediate_size") -> ModelConfig:
    """Args: ffn: as in `decoder`."""
    return decoder(
        fields,
        _layers(fields),
        heads={"qk_norm": True, "gate": True},
        rope={"partial": 0.25},
        activation=fields.choice("hidden_act", {"silu": "silu", "swish": "silu"}),  # also of the convolution
        ffn=ffn,
    )


def _layers(fields: Fields) -> tuple[MixerConfig | PartConfig, ...]:
    count, interval = fields.layers("num_hidden_layers"), fields.size("full_attention_interval", 4)
    types = fields.kinds("layer_types", KINDS, [KINDS[(number + 1) % interval == 0] for number in range(count)])
    delta = GatedDeltaConfig(
        heads=fields.size("linear_num_value_heads"),
        key_heads=fields.divisor("linear_num_key_heads", "linear_num_value_heads"),
        key_size=fields.size("linear_key_head_dim"),
        value_size=fields.size("linear_value_head_dim"),
        taps=fields.size("linear_conv_kernel_dim", least=2),
        norm_eps=fields.number("rms_norm_eps"),
    )
    return tuple(delta if kind == KINDS[0] else SoftmaxConfig() for kind in types)


def transforms(config: ModelConfig) -> dict[str, Transform]:
    """Transforms of norms, convolutions and rows of queries."""
    norms = ("norm", "attention.norm", "dense.norm", "attention.q_norm", "attention.k_norm")
    found = {f"{NAMES_OF_QWEN[name]}.weight": ONE_PLUS for name in norms}
    found[f"{DELTA}.conv1d.weight"] = CONVOLUTION
    for heads in config.heads:
        of_heads = permuted((heads.heads, 2, -1), (1, 0, 2))
        found |= {f"{NAMES['attention.q']}.{kind}": of_heads for kind in ("weight", "bias")}
    return found


QWEN3_5_TEXT = importer(
    keys(read=READ, refused=SHAPE, harmless=HARMLESS),
    decoder_of,
    NAMES_OF_QWEN,
    transforms,
    buffers=re.compile(r"model\.(mtp|visual)\..*|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)
QWEN3_5 = dataclasses.replace(
    QWEN3_5_TEXT,
    keys=keys(read=READ, refused=SHAPE, harmless=f"{HARMLESS} {OUTSIDE}"),
    nested="text_config",
    wrapper=("model.language_model.",),
)
