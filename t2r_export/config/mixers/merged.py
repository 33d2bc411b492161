"""A layer that reads prefix and source as one, as plain data. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers.base import MixerConfig


@dataclass(frozen=True)
class MergedConfig(MixerConfig):
    """No layer of its own for the source: the decoder's own mixer reads it beside the prefix, with the same query and
    under one normalizer (Li et al. 2021, arXiv 2101.00542, section 3)."""

    kind: ClassVar[str] = "merged"

    def summary(self) -> str:
        return "in the layer's own mixer"

    def state_summary(self, attention: AttentionConfig | None) -> str:
        return "what the layer's own mixer keeps of it"
