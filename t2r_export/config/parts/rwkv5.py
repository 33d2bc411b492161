"""RWKV-5.2: time mixing. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.base import PartConfig


@dataclass(frozen=True, kw_only=True)
class RWKV5Config(PartConfig):
    """Time mixing of RWKV-5.2 "Eagle" (Peng et al. 2024, arXiv 2404.05892): linear attention with a trained decay."""

    kind: ClassVar[str] = "rwkv5"

    heads: int
    head_size: int  # of keys and of values
    norm_eps: float = 1e-5  # of the group norm of each head's output

    @property
    def inner(self) -> int:
        return self.heads * self.head_size
