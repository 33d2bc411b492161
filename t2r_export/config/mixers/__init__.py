"""The kinds of attention mixers: one config each, listed in `INSIDES`. Imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from t2r_export.config.mixers.base import Guard, MixerConfig
from t2r_export.config.mixers.hybrid import HybridConfig
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.mixers.softmax import SoftmaxConfig, WindowConfig
from t2r_export.config.tagged import resolve

MODEL = "t2r_export.model.mixers"
LAB = "t2r_export.lab"


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
        Inside(resolve(f"{LAB}.config.span:SpanConfig"), {"causal": f"{LAB}.span:SpanMixer"}),
        Inside(
            resolve(f"{LAB}.config.compressive:CompressiveConfig"), {"causal": f"{LAB}.compressive:CompressiveMixer"}
        ),
        Inside(HybridConfig, {"causal": f"{MODEL}.hybrid:HybridMixer"}),
        Inside(
            resolve(f"{LAB}.config.shared:SharedConfig"),
            {"causal": f"{LAB}.shared:SharedMixer", "cross": f"{LAB}.shared:SharedCross"},
        ),
    )
}

__all__ = [
    "INSIDES",
    "Guard",
    "HybridConfig",
    "Inside",
    "LinearConfig",
    "MixerConfig",
    "SoftmaxConfig",
    "WindowConfig",
]
