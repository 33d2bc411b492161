"""The token mixers: one a file, behind the interface in `base`, named in one table."""

from __future__ import annotations

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.mixers.hybrid import HybridMixer
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.mixers.recurrent import GRUMixer, LSTMMixer
from t2r_export.model.mixers.softmax import SoftmaxMixer
from t2r_export.model.mixers.span import SpanMixer
from t2r_export.model.mixers.window import WindowMixer

# `kind` of the config -> class; the configs stand in t2r_export.config.mixers.MIXER_CONFIGS under the same names
MIXERS: dict[str, type[Mixer]] = {
    "softmax": SoftmaxMixer,
    "linear": LinearMixer,
    "window": WindowMixer,
    "lstm": LSTMMixer,
    "gru": GRUMixer,
    "span": SpanMixer,
    "hybrid": HybridMixer,
}


def build_mixer(model: ModelConfig, config: MixerConfig) -> Mixer:
    """The mixer that `config` describes, with fresh weights."""
    return MIXERS[config.kind](model, config)


__all__ = ["MIXERS", "Mixer", "State", "build_mixer"]
