"""Well-known model sizes with random weights; speed and memory do not depend on the values.

A size is a softmax model; students are converted with the defaults of `t2r convert`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import LinearConfig, MixerConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.students import student_mixer
from t2r_export.config.uniform import UniformConfig
from t2r_export.model.initialize import initialize
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

FEATURE_BIAS, TOKEN_STD = 0.5, 0.1

SIZES: dict[str, UniformConfig] = {
    "gpt2-small": UniformConfig(
        vocab_size=50257,
        width=768,
        ffn_size=3072,
        layers=(SoftmaxConfig(),) * 12,
        position="learned",
        max_positions=1024,
        attention=HeadsConfig(heads=12, kv_heads=12, head_size=64),
    ),
    "smollm-135m": UniformConfig(
        vocab_size=49152,
        width=576,
        ffn_size=1536,
        layers=(SoftmaxConfig(),) * 30,
        norm="rms",
        activation="silu",
        gated_ffn=True,
        position="none",
        ffn_bias=False,
        attention=HeadsConfig(
            heads=9, kv_heads=3, head_size=64, qkv_bias=False, output_bias=False, positions=RotaryConfig()
        ),
    ),
}


def config_of(size: str) -> ModelConfig:
    """The softmax config of a size.

    Raises:
        UserError: an unknown size; lists the known ones.
    """
    if size not in SIZES:
        raise UserError(f"a size of {', '.join(SIZES)}", repr(size), "choose one of those")
    return SIZES[size].build()


def student(size: str, **options: Any) -> MixerConfig | PartConfig:
    """The mixer of a student of that size; `options` override the defaults of `t2r convert`.

    Raises:
        UserError: an unknown size or invalid options.
    """
    return student_mixer(LinearConfig.kind, options, config_of(size))[0]


def random_model(size: str, mixer: MixerConfig | PartConfig | None = None) -> Transformer:
    """A random model of a size with `mixer` in all layers; default: the student's mixer.

    Feature biases are positive, to avoid tiny first denominators, and embeddings are large, to keep errors of layers
    from accumulating: so parity of quantized graphs depends on their rounding only.

    Raises:
        UserError: an unknown size.
    """
    config = config_of(size)
    mixers = [student(size) if mixer is None else mixer] * len(config.layers)
    model = initialize(config.with_mixers(*mixers), seed=0).eval()
    for name, parameter in model.named_parameters():
        if ".maps." in name and name.endswith("bias"):
            nn.init.constant_(parameter, FEATURE_BIAS)
    nn.init.normal_(model.embedding.weight, std=TOKEN_STD, generator=torch.Generator().manual_seed(0))
    return model


def softmax_model(size: str) -> Transformer:
    """The softmax decoder of that size, for other engines."""
    return random_model(size, SoftmaxConfig())
