"""Product-key memory in place of a feed-forward. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import need, size

MAX_KEYS = 1024  # per query half: the largest memory of the paper has 1024² values


@dataclass(frozen=True)
class ProductKeyConfig(PartConfig):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242): keys² values, `top` of them read per head."""

    kind: ClassVar[str] = "product_key"
    mixes: ClassVar[bool] = False

    keys: int  # sub-keys per query half
    query_size: int  # per head, both halves
    heads: int = 4
    top: int = 32  # values per head

    def __post_init__(self) -> None:
        super().__post_init__()
        size("keys", self.keys, MAX_KEYS)
        size("top", self.top, self.keys)
        need(self.query_size % 2 == 0, "an even query_size", self.query_size, "correct it")
