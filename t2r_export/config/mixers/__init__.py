"""The kinds of attention mixers: one config each, listed in `INSIDES`. Imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from t2r_export.config.mixers.base import Guard, MixerConfig
from t2r_export.config.mixers.compressive import CompressiveConfig
from t2r_export.config.mixers.hybrid import HybridConfig
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.mixers.shared import SharedConfig
from t2r_export.config.mixers.softmax import SoftmaxConfig, SpanConfig, WindowConfig

MODEL = "t2r_export.model.mixers"


@dataclass(frozen=True)
class Inside:
    """A line of INSIDES: the config, and `module:Class` of each form that the kind has.

    Forms: `causal` self-attention of a decoder, `encoder` self-attention of a source, `cross` attention to a source.
    """

    config: type[MixerConfig]
    forms: Mapping[str, str]


INSIDES: dict[str, Inside] = {
    inside.config.kind: inside
    for inside in (
        Inside(
            SoftmaxConfig,
            {
                "causal": f"{MODEL}.softmax:SoftmaxMixer",
                "encoder": f"{MODEL}.bidirectional:SoftmaxEncoder",
                "cross": f"{MODEL}.cross:SoftmaxCross",
            },
        ),
        Inside(
            LinearConfig,
            {
                "causal": f"{MODEL}.linear:LinearMixer",
                "encoder": f"{MODEL}.bidirectional:LinearEncoder",
                "cross": f"{MODEL}.cross:LinearCross",
            },
        ),
        Inside(WindowConfig, {"causal": f"{MODEL}.window:WindowMixer"}),
        Inside(SpanConfig, {"causal": f"{MODEL}.span:SpanMixer"}),
        Inside(CompressiveConfig, {"causal": f"{MODEL}.compressive:CompressiveMixer"}),
        Inside(HybridConfig, {"causal": f"{MODEL}.hybrid:HybridMixer"}),
        Inside(SharedConfig, {"causal": f"{MODEL}.shared:SharedMixer", "cross": f"{MODEL}.shared:SharedCross"}),
    )
}

__all__ = [
    "INSIDES",
    "CompressiveConfig",
    "Guard",
    "HybridConfig",
    "Inside",
    "LinearConfig",
    "MixerConfig",
    "SharedConfig",
    "SoftmaxConfig",
    "SpanConfig",
    "WindowConfig",
]
