"""Families that are Llama with layer norms: the defaults of their keys, their config, and other names of tensors.

Keys that are only harmless in some of them (attention_bias, mlp_bias) are absent from transformers' class.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.llama import (
    LAYER,
    NAMES,
    POSITIONS,
    all_but_each,
    by_neighbours,
    decoder,
    family,
    one_plus,
    sliding_layers,
    windows_rotate,
    with_one_norm,
)
from t2r_export.checkpoints.importers.llamas import NO_BIASES, windows
from t2r_export.checkpoints.importers.rotary import PARTIAL
from t2r_export.checkpoints.importers.sources import HEAD
from t2r_export.config.mixers import MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig

RMS = "rms_norm_eps"
COHERE: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "bos_token_id": 5,
    "eos_token_id": 255001,
}
OF_COHERE: dict[str, tuple[Any, ...]] = {  # refused
    "position_embedding_type": (None, "rope", "rope_gptj"),
    **dict.fromkeys(("use_parallel_block", "use_gated_activation"), (None, True)),
}
NO_NORM_BIASES = dict.fromkeys((f"{LAYER}.input_layernorm.bias", "model.norm.bias"), 0.0)
NORMS = [theirs for ours, theirs in NAMES.items() if "norm" in ours]
NO_NORM_WEIGHTS = {**{f"{name}.weight": 1.0 for name in NORMS}, **{f"{name}.bias": 0.0 for name in NORMS}}
OLMO_EPS = 1e-5  # constant in transformers' class
OF_PHI = {
    **NAMES,
    "norm": "model.final_layernorm",
    "attention.o": f"{LAYER}.self_attn.dense",
    "dense.up": f"{LAYER}.mlp.fc1",
    "dense.down": f"{LAYER}.mlp.fc2",
}
OF_STARCODER2 = {**NAMES, "dense.up": f"{LAYER}.mlp.c_fc", "dense.down": f"{LAYER}.mlp.c_proj"}


def _cohere(fields: Fields, layers: tuple[MixerConfig, ...] | None = None) -> ModelConfig:
    scale = fields.number("logit_scale")
    return with_one_norm(decoder(fields, layers, eps="layer_norm_eps", norm="layer", parallel=True, logit_scale=scale))


def _cohere2(fields: Fields) -> ModelConfig:
    layers = sliding_layers(fields, fields.size("sliding_window"), all_but_each(fields, 4))
    return windows_rotate(_cohere(fields, layers))


def _phi(fields: Fields) -> ModelConfig:
    biases: dict[str, Any] = {"qkv_bias": True, "ffn_bias": True, "head_bias": True}
    rope = {"partial": 0.5}
    return with_one_norm(
        decoder(fields, eps="layer_norm_eps", rope=rope, norm="layer", parallel=True, gated_ffn=False, **biases)
    )


def _stablelm(fields: Fields) -> ModelConfig:
    parallel = fields.flag("use_parallel_residual")
    model = decoder(
        fields,
        (SoftmaxConfig(),) * fields.layers("num_hidden_layers"),
        qkv_bias=fields.flag("use_qkv_bias"),
        output_bias=False,
        eps="layer_norm_eps",
        rope={"partial": 0.25},
        norm="layer",
        parallel=parallel,
    )
    return with_one_norm(model) if parallel else model


def _starcoder2(fields: Fields) -> ModelConfig:
    bias = fields.flag("use_bias")
    return decoder(
        fields,
        windows(fields),
        qkv_bias=bias,
        eps="norm_epsilon",
        norm="layer",
        gated_ffn=False,
        ffn_bias=bias,
    )


LAYER_NORMS: dict[str, Importer] = {
    # Command R (Cohere 2024): attention and feed-forward in parallel after one layer norm without a bias, and rotation
    # of adjacent dimensions
    "cohere": family(
        {**COHERE, "rope_theta": 5e5},
        _cohere,
        lacks=RMS,
        refused=OF_COHERE,
        harmless="mlp_bias",
        transforms=by_neighbours,
        constants=NO_NORM_BIASES,
    ),
    # Command R7B and A (arXiv 2504.00698): Command R with windows, and full-attention layers without positions
    "cohere2": family(
        {**COHERE, "sliding_window": 4096, "sliding_window_pattern": None},
        _cohere2,
        lacks=RMS,
        refused=OF_COHERE,
        harmless="mlp_bias _sliding_window_pattern",
        transforms=by_neighbours,
        constants=NO_NORM_BIASES,
    ),
    # Jais 2 (Inception 2025): biases, and an ungated feed-forward with squared ReLU
    "jais2": family(
        {
            "vocab_size": 150272,
            "hidden_size": 3328,
            "intermediate_size": 26624,
            "num_attention_heads": 26,
            "hidden_act": "relu2",
            "max_position_embeddings": 8192,
            "layer_norm_eps": 1e-5,
            "attention_bias": True,
            "mlp_bias": True,
            "bos_token_id": 0,
            "eos_token_id": 150024,
        },
        lambda fields: decoder(fields, eps="layer_norm_eps", norm="layer", gated_ffn=False),
        lacks=RMS,
    ),
    # Nemotron-4 and Minitron (Parmar et al. 2024, arXiv 2402.16819): layer norms that scale by 1 + w, an ungated
    # feed-forward with squared ReLU, and rotary positions for a part of each head
    "nemotron": family(
        {
            **PARTIAL,
            "vocab_size": 256000,
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_attention_heads": 48,
            "hidden_act": "relu2",
            "max_position_embeddings": 4096,
            "norm_eps": 1e-5,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 2,
            "eos_token_id": 3,
        },
        lambda fields: decoder(fields, eps="norm_eps", rope={"partial": 0.5}, norm="layer", gated_ffn=False),
        lacks=RMS,
        transforms=lambda _: one_plus(NAMES),
    ),
    # OLMo (Groeneveld et al. 2024, arXiv 2402.00838): layer norms that have no weights
    "olmo": family(
        {"vocab_size": 50304, "attention_bias": False, "eos_token_id": 50279},
        lambda fields: decoder(fields, norm="layer", norm_eps=OLMO_EPS),
        lacks=f"{RMS} head_dim",
        refused={**POSITIONS, "head_dim": (None,)},
        harmless=f"mlp_bias {RMS}",
        constants=NO_NORM_WEIGHTS,
    ),
    # Phi-1.5 and Phi-2 (Li et al. 2023, arXiv 2309.05463): attention and feed-forward in parallel after one norm,
    # biases everywhere, and rotary positions for a part of each head
    "phi": family(
        {
            **PARTIAL,
            "vocab_size": 51200,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 24,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        _phi,
        OF_PHI,
        lacks=RMS,
        harmless=f"{NO_BIASES} embd_pdrop resid_pdrop",
        outside=frozenset({HEAD, "lm_head.bias"}),
    ),
    # StableLM (Stability AI 2024, arXiv 2402.17834): rotary positions for a part of each head; in some, attention and
    # feed-forward are parallel after one norm. Norms of single heads are refused
    "stablelm": family(
        {
            **PARTIAL,
            "vocab_size": 50304,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "layer_norm_eps": 1e-5,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
        _stablelm,
        lacks=f"{RMS} head_dim layer_types",
        refused={"head_dim": (None,)},  # transformers uses it for the rotation only
    ),
    # StarCoder2 (Lozhkov et al. 2024, arXiv 2402.19173): biases, an ungated feed-forward, and windows in some models
    "starcoder2": family(
        {
            "vocab_size": 49152,
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "norm_epsilon": 1e-5,
            "sliding_window": None,
            "use_bias": True,
            "tie_word_embeddings": True,
            "bos_token_id": 50256,
            "eos_token_id": 50256,
        },
        _starcoder2,
        OF_STARCODER2,
        lacks=RMS,
        harmless="embedding_dropout residual_dropout",
    ),
}
