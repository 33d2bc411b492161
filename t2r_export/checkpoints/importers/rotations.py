"""Families that are Llama with other rotations, norms or scales of q and k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    POSITIONS,
    cap,
    decoder,
    family,
    head_sizes,
    q_and_k,
    sliding_layers,
    window_of,
    with_positions,
)
from t2r_export.checkpoints.importers.llamas import MISTRAL, NO_BIASES, windows
from t2r_export.checkpoints.importers.rotary import LENGTH, assume, dynamic, rotary
from t2r_export.checkpoints.importers.sources import Transform, in_heads
from t2r_export.config.attention import PositionScale
from t2r_export.config.model import ModelConfig
from t2r_export.config.scalings import NtkScaling, ScalingConfig

# HunYuan's dense models (Tencent 2025): norms of q and k after the rotation. Their files call the scaling of the
# rotation dynamic; with an alpha it is fixed
OF_HUNYUAN = {
    **NAMES,
    "attention.q_norm": f"{LAYER}.self_attn.query_layernorm",
    "attention.k_norm": f"{LAYER}.self_attn.key_layernorm",
}
UNUSED = ("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim")  # rotary parameters, ignored beside alpha


def _hunyuan(fields: Fields) -> ModelConfig:
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
    _hunyuan,
    OF_HUNYUAN,
    refused={**POSITIONS, "use_qk_norm": (None, True), "num_experts": (None, 0, 1)},
    harmless="eod_token_id mlp_bias pretraining_tp",  # not in texts, absent from transformers' class, split products
)


# Ministral 3 (Mistral AI 2025): Mistral with queries scaled by their position, as in Llama 4
FACTOR = "llama_4_scaling_beta"
# defaults of transformers' class
ROPE_OF_MINISTRAL3 = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    LENGTH: 16384,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
}
OF_MINISTRAL3 = {
    **MISTRAL,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}


def _ministral3(fields: Fields) -> ModelConfig:
    assume(fields, {**ROPE_OF_MINISTRAL3, FACTOR: 0.1})
    rope: dict[str, Any] = {"others": (FACTOR, "max_position_embeddings")}
    scaling = rotary(fields, head_sizes(fields)[2], **rope).scaling
    where = f"the rotary parameters of {fields.where}"
    parameters = Fields(fields.get("rope_parameters", fields.get("rope_scaling")), where)
    length = getattr(scaling, "original_max_positions", None) or parameters.size(LENGTH)
    scales = parameters.get(FACTOR) != 0  # 0 in Devstral 2
    scale = PositionScale(factor=parameters.number(FACTOR), length=length) if scales else None
    return decoder(fields, windows(fields), qkv_bias=False, heads={"position_scale": scale}, rope=rope)


MINISTRAL3 = family(OF_MINISTRAL3, _ministral3, harmless=NO_BIASES)


# nanochat (Karpathy 2025): norms without weights, also of the embeddings and of q and k; squared ReLU, capped logits.
# transformers rotates by the negative angle, which equals a rotation of swapped halves. It normalizes q and k after the
# rotation, which equals normalization before it, since the norms have no weights
OF_NANOCHAT = {
    "vocab_size": 50304,
    "hidden_size": 768,
    "intermediate_size": 8192,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "hidden_act": "relu2",
    "final_logit_softcapping": 15.0,
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
NAMES_OF_NANOCHAT = {
    **NAMES,
    "embedding_norm": "model.embedding_norm",
    "dense.up": f"{LAYER}.mlp.fc1",
    "dense.down": f"{LAYER}.mlp.fc2",
}
WEIGHTS = {f"{theirs}.weight": 1.0 for ours, theirs in NAMES_OF_NANOCHAT.items() if "norm" in ours}


def _nanochat(fields: Fields) -> ModelConfig:
    model = decoder(
        fields,
        heads={"qk_norm": True},
        gated_ffn=False,
        embedding_norm=True,
        logit_softcap=cap(fields, "final_logit_softcapping"),
    )
    rope = model.heads[0].rotary
    if rope is not None and rope.scaling is not None and rope.scaling.magnitude != 1:
        expected = "of a type that rotates and does not scale, since q and k are normalized after it"
        raise fields.wrong("rotary parameters", expected, rope.scaling.kind)
    return model


def _transforms(config: ModelConfig) -> dict[str, Transform]:
    size = config.heads[0].head_size
    return q_and_k(in_heads([*range(size // 2, size), *range(size // 2)]))


NANOCHAT = family(
    OF_NANOCHAT,
    _nanochat,
    NAMES_OF_NANOCHAT,
    refused={**POSITIONS, "logits_soft_cap": (None, 15), "qkv_bias": (None, False)},  # keys of older versions
    harmless="mlp_bias",  # absent from transformers' class
    transforms=_transforms,
    constants=WEIGHTS,
)


# SmolLM3 (Hugging Face 2025): some layers without positions (Yang et al. 2025, arXiv 2501.18795). no_rope_layers has a
# 1 for each layer that rotates. Layers without positions may have a window
OF_SMOLLM3 = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2e6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}


def _smollm3(fields: Fields) -> ModelConfig:
    rotating = _rotating(fields)
    layers = sliding_layers(fields, window_of(fields), lambda layer: not rotating[layer])
    model = decoder(fields, layers)
    return with_positions(model, [model.heads[0].positions if rotates else None for rotates in rotating])


def _rotating(fields: Fields) -> list[int]:
    """Whether the queries and keys of each layer rotate."""
    count, interval = fields.layers("num_hidden_layers"), fields.size("no_rope_layer_interval")
    found = fields.get("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(count)])
    if not isinstance(found, list) or len(found) != count or not all(one in (0, 1) for one in found):
        raise fields.wrong("no_rope_layers", f"{count} numbers, 1 for a layer that rotates and else 0", found)
    return found


SMOLLM3 = family(OF_SMOLLM3, _smollm3)
