"""What each kind of token mixer can be asked for, as plain data: a config a kind, in one table.

Imports without torch. A new mixer is a config here, with a line in `MIXER_CONFIGS`, and a class in
`t2r_export.model.mixers`, with a line in its `MIXERS` under the same kind. What a kind cannot be in a given model is
the business of its `check`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2r_export.config.mixers.base import Guard, MixerConfig
from t2r_export.config.mixers.hybrid import HybridConfig
from t2r_export.config.mixers.linear import LinearConfig
from t2r_export.config.mixers.recurrent import GRUConfig, LSTMConfig
from t2r_export.config.mixers.softmax import SoftmaxConfig, SpanConfig, WindowConfig
from t2r_export.config.tagged import of_kind
from t2r_export.config.validation import fields

MIXER_CONFIGS: dict[str, type[MixerConfig]] = {
    c.kind: c for c in (SoftmaxConfig, LinearConfig, WindowConfig, SpanConfig, HybridConfig, LSTMConfig, GRUConfig)
}


def mixer_from_dict(data: Mapping[str, Any]) -> MixerConfig:
    """A layer's config from plain data with its `kind`. Raises UserError for a missing, unknown or impossible value."""
    cls, values = of_kind(MIXER_CONFIGS, data, "mixer")
    if isinstance(values.get("guard"), Mapping):
        values["guard"] = Guard(**fields(Guard, values["guard"], "the guard"))
    return cls(**values)


__all__ = [
    "MIXER_CONFIGS",
    "GRUConfig",
    "Guard",
    "HybridConfig",
    "LSTMConfig",
    "LinearConfig",
    "MixerConfig",
    "SoftmaxConfig",
    "SpanConfig",
    "WindowConfig",
    "mixer_from_dict",
]
