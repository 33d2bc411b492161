"""What each kind of feed-forward can be asked for, as plain data: one config per kind, in one table.

Imports without torch. A new kind is a config here, a class in t2r_export.model.feed_forward, and a line in
`FEED_FORWARDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from t2r_export.config.tagged import Entry, Kind, of_kind
from t2r_export.config.validation import need, size

MAX_KEYS = 1024  # of a half query: the largest memory of the paper has 1024² values


@dataclass(frozen=True)
class FeedForwardConfig(Kind):
    """Base of the feed-forwards' configs."""


@dataclass(frozen=True)
class DenseConfig(FeedForwardConfig):
    """Two projections, or three where gated, of the model's ffn_size and activation."""

    kind: ClassVar[str] = "dense"


@dataclass(frozen=True)
class NoneConfig(FeedForwardConfig):
    """No feed-forward and no norm before it: a block is its mixer, as in all-attention networks and LSTMs."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class ProductKeyConfig(FeedForwardConfig):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242): keys² values, of which a head reads `top`."""

    kind: ClassVar[str] = "product_key"

    keys: int  # sub-keys of a half query; keys² values
    query_size: int  # numbers in a head's query, both halves
    heads: int = 4
    top: int = 32  # values that a head reads

    def __post_init__(self) -> None:
        size("keys", self.keys, MAX_KEYS)
        for name in ("query_size", "heads"):
            size(name, getattr(self, name))
        size("top", self.top, self.keys)
        need(self.query_size % 2 == 0, "an even query_size, to cut in two halves", self.query_size, "correct it")

    def summary(self) -> str:
        return f"{self.keys}² values, {self.heads} heads, top {self.top}"


DENSE = DenseConfig()
FEED_FORWARDS: dict[str, Entry[FeedForwardConfig]] = {
    entry.config.kind: entry
    for entry in (
        Entry(DenseConfig, "t2r_export.model.feed_forward:Dense"),
        Entry(NoneConfig, None),
        Entry(ProductKeyConfig, "t2r_export.model.feed_forward:ProductKey"),
    )
}


def feed_forward_from_dict(data: Mapping[str, Any]) -> FeedForwardConfig:
    """A config from plain data with its `kind`. Raises UserError for a missing, unknown or impossible value."""
    cls, values = of_kind(FEED_FORWARDS, data, "feed-forward")
    return cls(**values)
