"""Shapes of well-known models, with random weights: speed and memory do not depend on what the numbers are."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from t2r_export.config.attention import AttentionConfig, RotaryConfig
from t2r_export.config.mixers import LinearConfig, MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.initialize import initialize
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

FEATURE_BIAS, TOKEN_STD = 0.5, 0.1

SIZES: dict[str, ModelConfig] = {
    "gpt2-small": ModelConfig(
        vocab_size=50257,
        width=768,
        ffn_size=3072,
        layers=(LinearConfig(32),) * 12,
        position="learned",
        max_positions=1024,
        attention=AttentionConfig(heads=12, kv_heads=12, head_size=64),
    ),
    "smollm-135m": ModelConfig(
        vocab_size=49152,
        width=576,
        ffn_size=1536,
        layers=(LinearConfig(32, positions="drop"),) * 30,
        norm="rms",
        activation="silu",
        gated_ffn=True,
        position="none",
        ffn_bias=False,
        attention=AttentionConfig(
            heads=9, kv_heads=3, head_size=64, qkv_bias=False, output_bias=False, rotary=RotaryConfig()
        ),
    ),
}


def config_of(size: str, mixer: MixerConfig | None = None) -> ModelConfig:
    """The config of a known size, with `mixer` in every layer if one is given.

    Raises:
        UserError: an unknown size; lists the known ones.
    """
    if size not in SIZES:
        raise UserError(f"a size of {', '.join(SIZES)}", repr(size), "choose one of those")
    config = SIZES[size]
    return config if mixer is None else replace(config, layers=(mixer,) * len(config.layers))


def random_model(size: str, mixer: MixerConfig | None = None, seed: int = 0) -> Transformer:
    """A model of a known size with random weights. Raises UserError for an unknown size.

    Two things are unlike a model's at the start of training, so that parity judges a quantized graph by its rounding
    alone: features are above zero, or a text's first denominators would be next to nothing; and tokens are larger than
    what layers add to them, or the layers' errors would add up as they do in no trained model.
    """
    model = initialize(config_of(size, mixer), seed).eval()
    for name, parameter in model.named_parameters():
        if ".maps." in name and name.endswith("bias"):
            nn.init.constant_(parameter, FEATURE_BIAS)
    nn.init.normal_(model.embedding.weight, std=TOKEN_STD, generator=torch.Generator().manual_seed(seed))
    return model


def softmax_model(size: str) -> Transformer:
    """The softmax decoder of that size: what the others run."""
    return random_model(size, SoftmaxConfig())
