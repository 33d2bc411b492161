"""Families that are Llama with a few options: the defaults of their keys, their config, and other names of tensors.

Keys that are only harmless in some of them (attention_bias, mlp_bias) are absent from transformers' class.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    all_but_each,
    by_neighbours,
    decoder,
    family,
    sliding_layers,
    window_of,
    windows_rotate,
    with_positions,
)
from t2r_export.checkpoints.importers.rotary import LENGTH, PARTIAL, longrope, rotary_by_kind
from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig

MISTRAL: dict[str, Any] = {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN2: dict[str, Any] = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
GLM: dict[str, Any] = {
    **PARTIAL,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
}
NO_BIASES = "attention_bias mlp_bias"
GATES_AND_UPS = {f"dense.{part}": f"{LAYER}.mlp.gate_up_proj" for part in ("gate", "up")}
NORMS_AFTER = {
    **NAMES,
    "attention.norm_after": f"{LAYER}.post_attention_layernorm",
    "dense.norm_after": f"{LAYER}.post_feedforward_layernorm",
}
OF_GLM = {
    **NAMES,
    **GATES_AND_UPS,
    "attention.norm_after": f"{LAYER}.post_self_attn_layernorm",
    "dense.norm_after": f"{LAYER}.post_mlp_layernorm",
}
OF_PHI3 = {**NAMES, **GATES_AND_UPS, **{f"attention.{part}": f"{LAYER}.self_attn.qkv_proj" for part in "qkv"}}
OLMO3_THETA = 5e5


def windows(fields: Fields, stated: bool = False) -> tuple[MixerConfig, ...]:
    """Windows in all layers, or in none. Args: stated: as in `sliding_layers`."""
    return sliding_layers(fields, window_of(fields), stated=stated)


def _last_windows(fields: Fields) -> tuple[MixerConfig, ...]:
    """The first max_window_layers are softmax, the others windows if use_sliding_window is true."""
    first = fields.size("max_window_layers", least=0)
    return sliding_layers(fields, window_of(fields), lambda layer: layer >= first)


def _ernie4_5(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    return decoder(fields, qkv_bias=bias, ffn_bias=bias)


def _exaone4(fields: Fields) -> ModelConfig:
    window = window_of(fields)
    layers = sliding_layers(fields, window, all_but_each(fields))
    model = decoder(fields, layers, qkv_bias=False, heads={"qk_norm": True}, norm_position="after")
    return model if window is None else windows_rotate(model)


def _glm(fields: Fields, norm_position: str) -> ModelConfig:
    return decoder(fields, output_bias=False, rope={"partial": 0.5}, norm_position=norm_position)


def _internlm3(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    if fields.flag("mlp_bias") != bias:
        raise fields.wrong("mlp_bias", "as attention_bias, since transformers has no other", not bias)
    return decoder(fields)


def _olmo2(fields: Fields, layers: tuple[MixerConfig, ...] | None = None, rotates: bool = True) -> ModelConfig:
    heads = {"qk_norm": True, "qk_norm_wide": True}
    return decoder(fields, layers, heads=heads, norm_position="after", rotates=rotates)


def _olmo3(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), lambda layer: (layer + 1) % 4 != 0)
    model = _olmo2(fields, layers, rotates=False)
    # transformers uses a rope_theta outside the rotary parameters for full layers only
    return with_positions(model, rotary_by_kind(fields, layers, model.heads[0].head_size, OLMO3_THETA))


LLAMAS: dict[str, Importer] = {
    # AFM (Arcee AI 2025): an ungated feed-forward with squared ReLU
    "arcee": family(
        {
            "hidden_size": 2560,
            "intermediate_size": 18432,
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
        lambda fields: decoder(fields, gated_ffn=False),
    ),
    # ERNIE 4.5 without experts (Baidu 2025): rotation of adjacent dimensions of a head
    "ernie4_5": family(
        {
            "vocab_size": 103424,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 18,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "tie_word_embeddings": True,
            "use_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _ernie4_5,
        harmless=NO_BIASES,
        transforms=by_neighbours,
    ),
    # EXAONE 4 (LG AI Research 2025, arXiv 2507.11407): norms of the parts' outputs, and of the heads of q and k; in
    # models with windows, full-attention layers have no positions
    "exaone4": family(
        {
            "vocab_size": 102400,
            "intermediate_size": 16384,
            "num_key_value_heads": 32,
            "rms_norm_eps": 1e-5,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        _exaone4,
        NORMS_AFTER,
        harmless=NO_BIASES,
    ),
    # GLM-4 (GLM Team 2024, arXiv 2406.12793): rotation of adjacent dimensions in a part of each head
    "glm": family(GLM, lambda fields: _glm(fields, "pre"), OF_GLM, harmless="mlp_bias", transforms=by_neighbours),
    # GLM-4-0414: GLM-4 with norms of the parts' outputs
    "glm4": family(GLM, lambda fields: _glm(fields, "both"), OF_GLM, harmless="mlp_bias", transforms=by_neighbours),
    # Helium (Kyutai 2025): rotation of adjacent dimensions of a head
    "helium": family(
        {
            "vocab_size": 48000,
            "hidden_size": 2560,
            "intermediate_size": 7040,
            "num_hidden_layers": 24,
            "num_attention_heads": 20,
            "num_key_value_heads": 20,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-8,
            "rope_theta": 100000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        lambda fields: decoder(fields, output_bias=False),
        transforms=by_neighbours,
    ),
    # InternLM3 (Shanghai AI Laboratory 2025): other names of the keys of biases. transformers reads it as Llama, so the
    # output has a bias if q, k and v have one, which requires that the feed-forward has one too
    "internlm3": family(
        {
            "vocab_size": 128512,
            "intermediate_size": 10240,
            "num_hidden_layers": 48,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _internlm3,
        aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    ),
    # Mistral (Jiang et al. 2023, arXiv 2310.06825): an optional sliding window in all layers
    "mistral": family(MISTRAL, lambda fields: decoder(fields, windows(fields), qkv_bias=False), harmless=NO_BIASES),
    # Ministral 8B (Mistral AI 2024): Mistral that states for each layer whether it has the window
    "ministral": family(
        MISTRAL, lambda fields: decoder(fields, windows(fields, stated=True), qkv_bias=False), harmless=NO_BIASES
    ),
    # OLMo 2 (OLMo et al. 2025, arXiv 2501.00656): norms after the parts instead of before them, and norms of q and k
    # over all heads at once
    "olmo2": family(
        {"vocab_size": 50304, "rms_norm_eps": 1e-5, "attention_bias": False, "eos_token_id": 50279},
        _olmo2,
        NORMS_AFTER,
        harmless="mlp_bias",
    ),
    # OLMo 3 (Team OLMo 2025, arXiv 2512.13961): OLMo 2 with windows in most layers, whose positions are unscaled
    "olmo3": family(
        {
            "vocab_size": 50304,
            "rms_norm_eps": 1e-5,
            "rope_theta": OLMO3_THETA,
            "attention_bias": False,
            "sliding_window": 4096,
            "eos_token_id": 50279,
        },
        _olmo3,
        NORMS_AFTER,
        lacks=LENGTH,
        harmless="mlp_bias",
    ),
    # Phi-3 (Abdin et al. 2024, arXiv 2404.14219): packed projections, in which the rows of q, k and v follow each
    # other, and a window in some models. Older files call longrope su or yarn
    "phi3": family(
        {
            **PARTIAL,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
            LENGTH: 4096,
            "rms_norm_eps": 1e-5,
            "sliding_window": None,
            "bos_token_id": 1,
            "eos_token_id": 32000,
        },
        lambda fields: decoder(
            fields,
            windows(fields),
            qkv_bias=False,
            rope={"partial": 1.0, "types": {"su": longrope, "yarn": longrope}},
        ),
        OF_PHI3,
        harmless=f"{NO_BIASES} embd_pdrop resid_pdrop",
    ),
    # Qwen2 (Yang et al. 2024, arXiv 2407.10671): biases of q, k and v; the last layers may be windows
    "qwen2": family(
        QWEN2,
        lambda fields: decoder(fields, _last_windows(fields), qkv_bias=True, output_bias=False),
        harmless=NO_BIASES,
    ),
    # Qwen3 (Yang et al. 2025, arXiv 2505.09388): Qwen2 with norms of q and k in place of biases
    "qwen3": family(
        {**QWEN2, "head_dim": 128, "attention_bias": False},
        lambda fields: decoder(fields, _last_windows(fields), heads={"qk_norm": True}),
        harmless="mlp_bias",
    ),
    # Seed-OSS (ByteDance 2025): biases of q, k and v, and optionally of the output
    "seed_oss": family(
        {
            "vocab_size": 155136,
            "intermediate_size": 27648,
            "num_hidden_layers": 64,
            "num_attention_heads": 80,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        lambda fields: decoder(fields, output_bias=fields.flag("attention_out_bias")),
        harmless="pretraining_tp residual_dropout",
    ),
}
