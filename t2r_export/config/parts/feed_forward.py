"""Feed-forwards: what a layer does to each token by itself. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.config.parts.base import PartConfig
from t2r_export.config.validation import choice, flag, need, size

MAX_KEYS = 1024  # of a half query: the largest memory of the paper has 1024² values


@dataclass(frozen=True)
class DenseConfig(PartConfig):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) where gated (Shazeer 2020)."""

    kind: ClassVar[str] = "dense"
    mixes: ClassVar[bool] = False

    size: int  # hidden
    activation: str = "gelu_tanh"
    gated: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        size("ffn_size", self.size)
        choice("activation", self.activation, ACTIVATIONS)
        flag("gated_ffn", self.gated)
        flag("ffn_bias", self.bias)


@dataclass(frozen=True)
class ProductKeyConfig(PartConfig):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242): keys² values, of which a head reads `top`."""

    kind: ClassVar[str] = "product_key"
    mixes: ClassVar[bool] = False

    keys: int  # sub-keys of a half query; keys² values
    query_size: int  # numbers in a head's query, both halves
    heads: int = 4
    top: int = 32  # values that a head reads

    def __post_init__(self) -> None:
        super().__post_init__()
        size("keys", self.keys, MAX_KEYS)
        for name in ("query_size", "heads"):
            size(name, getattr(self, name))
        size("top", self.top, self.keys)
        need(self.query_size % 2 == 0, "an even query_size, to cut in two halves", self.query_size, "correct it")

    def summary(self) -> str:
        return f"{self.keys}² values, {self.heads} heads, top {self.top}"
