"""Families that are Llama with a few options: the defaults of their keys, their config, and other names of tensors.

Keys that are only harmless in some of them (attention_bias, mlp_bias) are absent from transformers' class.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    by_neighbours,
    decoder,
    family,
    sliding_layers,
    window_of,
)
from t2r_export.checkpoints.importers.rotary import LENGTH, PARTIAL, assume, longrope
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
NO_BIASES = "attention_bias mlp_bias"
GATES_AND_UPS = {f"dense.{part}": f"{LAYER}.mlp.gate_up_proj" for part in ("gate", "up")}
OF_PHI3 = {**NAMES, **GATES_AND_UPS, **{f"attention.{part}": f"{LAYER}.self_attn.qkv_proj" for part in "qkv"}}
# values that transformers' class takes for null
CWM_ROPE = {"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, LENGTH: 8192}
CWM_ROPE |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
CWM_ENDS = [128001, 128008, 128009]


def windows(fields: Fields, stated: bool = False) -> tuple[MixerConfig, ...]:
    """Windows in all layers, or in none. Args: stated: as in `sliding_layers`."""
    return sliding_layers(fields, window_of(fields), stated=stated)


def _last_windows(fields: Fields) -> tuple[MixerConfig, ...]:
    """The first max_window_layers are softmax, the others windows if use_sliding_window is true."""
    first = fields.size("max_window_layers", least=0)
    return sliding_layers(fields, window_of(fields), lambda layer: layer >= first)


def _cwm(fields: Fields) -> ModelConfig:
    assume(fields, CWM_ROPE)
    if fields.get("eos_token_id") is None:
        fields.data["eos_token_id"] = CWM_ENDS
    layers = sliding_layers(fields, fields.size("sliding_window"), lambda layer: layer % 4 != 0)
    return decoder(fields, layers, qkv_bias=False)


def _ernie4_5(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    return decoder(fields, qkv_bias=bias, ffn_bias=bias)


def _internlm3(fields: Fields) -> ModelConfig:
    bias = fields.flag("attention_bias")
    if fields.flag("mlp_bias") != bias:
        raise fields.wrong("mlp_bias", "as attention_bias, since transformers has no other", not bias)
    return decoder(fields)


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
    # CWM (FAIR 2025, arXiv 2510.02387): windows in all but every fourth layer
    "cwm": family(
        {
            "vocab_size": 128256,
            "hidden_size": 6144,
            "intermediate_size": 21504,
            "num_hidden_layers": 64,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "mlp_bias": False,
            "sliding_window": 8192,
            "bos_token_id": 128000,
        },
        _cwm,
        harmless="attention_bias pretraining_tp",
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
    # IQuest-Coder (IQuest Lab 2026): other defaults
    "iquestcoder": family(
        {
            "vocab_size": 76800,
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_hidden_layers": 80,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    # Mistral (Jiang et al. 2023, arXiv 2310.06825): an optional sliding window in all layers
    "mistral": family(MISTRAL, lambda fields: decoder(fields, windows(fields), qkv_bias=False), harmless=NO_BIASES),
    # Ministral 8B (Mistral AI 2024): Mistral that states for each layer whether it has the window
    "ministral": family(
        MISTRAL, lambda fields: decoder(fields, windows(fields, stated=True), qkv_bias=False), harmless=NO_BIASES
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
