"""A layer that reads prefix and source as one, as plain data. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers.base import MixerConfig
from t2r_export.config.validation import flag


@dataclass(frozen=True)
class MergedConfig(MixerConfig):
    """No layer of its own for the source: the decoder's own mixer reads it beside the prefix, with the same query and
    under one normalizer (Li et al. 2021, arXiv 2101.00542, section 3)."""

    kind: ClassVar[str] = "merged"

    shared: bool = False  # the source's keys and values have the prefix's projections, and none of their own
    feed_forward: bool = False  # the values hold the feed-forward's first matrix, and the layer ends in its second

    def __post_init__(self) -> None:
        flag("shared", self.shared)
        flag("feed_forward", self.feed_forward)

    def summary(self) -> str:
        return (
            "in the layer's own mixer"
            + ", by its own projections" * self.shared
            + ", whose values are the feed-forward's hidden numbers" * self.feed_forward
        )

    def state_summary(self, attention: AttentionConfig | None) -> str:
        return "what the layer's own mixer keeps of it"
