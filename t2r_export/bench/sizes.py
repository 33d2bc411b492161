"""Shapes of well-known models, with random weights: speed and memory do not depend on what the numbers are."""

from __future__ import annotations

from dataclasses import replace

from t2r_export.config import ModelConfig, RotaryConfig
from t2r_export.initialize import initialize
from t2r_export.mixer_configs import LinearConfig, MixerConfig, SoftmaxConfig
from t2r_export.model import Transformer
from t2r_runtime.errors import UserError

SIZES: dict[str, ModelConfig] = {
    "gpt2-small": ModelConfig(
        vocab_size=50257,
        width=768,
        heads=12,
        kv_heads=12,
        head_size=64,
        ffn_size=3072,
        layers=(LinearConfig(32),) * 12,
        position="learned",
        max_positions=1024,
    ),
    "smollm-135m": ModelConfig(
        vocab_size=49152,
        width=576,
        heads=9,
        kv_heads=3,
        head_size=64,
        ffn_size=1536,
        layers=(LinearConfig(32, positions="drop"),) * 30,
        norm="rms",
        activation="silu",
        gated_ffn=True,
        position="rotary",
        rotary=RotaryConfig(),
        qkv_bias=False,
        output_bias=False,
        ffn_bias=False,
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
    """A model of a known size with random weights. Raises UserError for an unknown size."""
    return initialize(config_of(size, mixer), seed).eval()


def softmax_model(size: str) -> Transformer:
    """The softmax decoder of that size: what the others run."""
    return random_model(size, SoftmaxConfig())
