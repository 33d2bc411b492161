"""Recurrent baselines. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.base import PartConfig


@dataclass(frozen=True)
class LSTMConfig(PartConfig):
    """An LSTM layer with as many units as the model width."""

    kind: ClassVar[str] = "lstm"
    replaces_attention: ClassVar[bool] = True


@dataclass(frozen=True)
class GRUConfig(PartConfig):
    """A GRU layer with as many units as the model width."""

    kind: ClassVar[str] = "gru"
    replaces_attention: ClassVar[bool] = True
