"""The recurrent baselines. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers.base import MixerConfig


@dataclass(frozen=True)
class LSTMConfig(MixerConfig):
    """A layer of long short-term memory, as many units as the model is wide."""

    kind: ClassVar[str] = "lstm"
    attends: ClassVar[bool] = False

    def state_summary(self, attention: AttentionConfig | None) -> str:
        return "h and c"


@dataclass(frozen=True)
class GRUConfig(MixerConfig):
    """A layer of gated recurrent units, as many as the model is wide."""

    kind: ClassVar[str] = "gru"
    attends: ClassVar[bool] = False

    def state_summary(self, attention: AttentionConfig | None) -> str:
        return "h"
