"""Layers that reuse the attention weights of the layer below. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.mixers.base import MixerConfig


@dataclass(frozen=True)
class SharedConfig(MixerConfig):
    """Softmax attention with the attention weights of the layer below (SAN, Xiao et al. 2019, arXiv 1906.11024)."""

    kind: ClassVar[str] = "shared"
    grows: ClassVar[bool] = True
    borrows: ClassVar[bool] = True
    takes_sink: ClassVar[bool] = False

    @property
    def lends(self) -> bool:
        return True  # passes the borrowed weights on
