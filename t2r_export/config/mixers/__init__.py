"""What each kind of token mixer can be asked for, as plain data: one config per kind, in one table.

Imports without torch. A new mixer is a config here, a class in t2r_export.model.mixers, and a line in `MIXERS`. What a
kind cannot be in a given model is the business of its `check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2r_export.config.mixers.average import AverageConfig
from t2r_export.config.mixers.base import Guard, MixerConfig
from t2r_export.config.mixers.hybrid import HybridConfig
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.mixers.merged import MergedConfig
from t2r_export.config.mixers.recurrent import GRUConfig, LSTMConfig
from t2r_export.config.mixers.shared import SharedConfig
from t2r_export.config.mixers.softmax import SoftmaxConfig, SpanConfig, WindowConfig
from t2r_export.config.tagged import Entry, of_kind
from t2r_export.config.validation import fields

MODEL = "t2r_export.model.mixers"
MIXERS: dict[str, Entry[MixerConfig]] = {
    entry.config.kind: entry
    for entry in (
        Entry(SoftmaxConfig, f"{MODEL}.softmax:SoftmaxMixer"),
        Entry(LinearConfig, f"{MODEL}.linear:LinearMixer"),
        Entry(WindowConfig, f"{MODEL}.window:WindowMixer"),
        Entry(SpanConfig, f"{MODEL}.span:SpanMixer"),
        Entry(HybridConfig, f"{MODEL}.hybrid:HybridMixer"),
        Entry(LSTMConfig, f"{MODEL}.recurrent:LSTMMixer"),
        Entry(GRUConfig, f"{MODEL}.recurrent:GRUMixer"),
        Entry(AverageConfig, f"{MODEL}.average:AverageMixer"),
        Entry(SharedConfig, "t2r_export.model.shared:SharedAttention"),
    )
}

# of layers that see a whole source: an encoder's own, and a decoder's that look at what it gave
ENCODERS: dict[str, Entry[MixerConfig]] = {
    "softmax": Entry(SoftmaxConfig, f"{MODEL}.bidirectional:SoftmaxEncoder"),
    "linear": Entry(LinearConfig, f"{MODEL}.bidirectional:LinearEncoder"),
}
CROSSES: dict[str, Entry[MixerConfig]] = {
    "softmax": Entry(SoftmaxConfig, f"{MODEL}.cross:SoftmaxCross"),
    "linear": Entry(LinearConfig, f"{MODEL}.cross:LinearCross"),
    "shared": Entry(SharedConfig, "t2r_export.model.shared:SharedCross"),
    "merged": Entry(MergedConfig, None),  # a layer of its own kind, t2r_export.model.merged
}


def mixer_from_dict(data: Mapping[str, Any], table: Mapping[str, Entry[MixerConfig]] = MIXERS) -> MixerConfig:
    """A layer's config from plain data with its `kind`. Raises UserError for a missing, unknown or impossible value."""
    cls, values = of_kind(table, data, "mixer")
    if isinstance(values.get("guard"), Mapping):
        values["guard"] = Guard(**fields(Guard, values["guard"], "the guard"))
    return cls(**values)


__all__ = [
    "CROSSES",
    "ENCODERS",
    "MIXERS",
    "AverageConfig",
    "GRUConfig",
    "Guard",
    "HybridConfig",
    "LSTMConfig",
    "LinearConfig",
    "MergedConfig",
    "MixerConfig",
    "SharedConfig",
    "SoftmaxConfig",
    "SpanConfig",
    "WindowConfig",
    "mixer_from_dict",
]
