"""Scalings of rotary frequencies for long texts: one config per kind, in one table.

Imports without torch. A new kind is a file here with its options and its formula, and a line in `SCALINGS`.
"""

from __future__ import annotations

from t2r_export.config.scalings.base import ScalingConfig, plain
from t2r_export.config.scalings.chosen import ChosenScaling
from t2r_export.config.scalings.linear import LinearScaling
from t2r_export.config.scalings.llama3 import Llama3Scaling
from t2r_export.config.scalings.longrope import LongropeScaling
from t2r_export.config.scalings.ntk import NtkScaling
from t2r_export.config.scalings.proportional import ProportionalScaling
from t2r_export.config.scalings.yarn import YarnScaling
from t2r_export.config.tagged import Entry

SCALINGS: dict[str, Entry[ScalingConfig]] = {
    config.kind: Entry(config, None)
    for config in (
        ChosenScaling,
        LinearScaling,
        Llama3Scaling,
        LongropeScaling,
        NtkScaling,
        ProportionalScaling,
        YarnScaling,
    )
}

__all__ = [
    "SCALINGS",
    "ChosenScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongropeScaling",
    "NtkScaling",
    "ProportionalScaling",
    "ScalingConfig",
    "YarnScaling",
    "plain",
]
