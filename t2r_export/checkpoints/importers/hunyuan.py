"""HunYuan's dense models (Tencent 2025): Llama with norms of q and k after the rotation.

Their files call the scaling of the rotation dynamic; with an alpha it is fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import LAYER, NAMES, POSITIONS, decoder, family
from t2r_export.checkpoints.importers.rotary import dynamic
from t2r_export.config.model import ModelConfig
from t2r_export.config.scalings import NtkScaling, ScalingConfig

OURS = {
    **NAMES,
    "attention.q_norm": f"{LAYER}.self_attn.query_layernorm",
    "attention.k_norm": f"{LAYER}.self_attn.key_layernorm",
}
UNUSED = ("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim")  # rotary parameters, ignored beside alpha


def _config(fields: Fields) -> ModelConfig:
    heads = {"qk_norm": True, "qk_norm_after": True}
    return decoder(fields, heads=heads, rope={"types": {"dynamic": _stretched}})


def _stretched(rope: Fields, length: Callable[[], int], trained: Any) -> ScalingConfig | None:
    if not rope.get("alpha"):
        return dynamic(rope, length, trained)
    for key in UNUSED:
        rope.get(key)
    return NtkScaling(rope.number("alpha"))


HUNYUAN_V1_DENSE = family(
    {"vocab_size": 290943, "rms_norm_eps": 1e-5, "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2},
    _config,
    OURS,
    refused={**POSITIONS, "use_qk_norm": (None, True), "num_experts": (None, 0, 1)},
    harmless="eod_token_id mlp_bias pretraining_tp",  # not in texts, absent from transformers' class, split products
)
