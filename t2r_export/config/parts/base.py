"""The base of the parts of a layer. Imports without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from t2r_export.config.gate import ResidualGateConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.options import check_values
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.tagged import Kind
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class PartConfig(Kind):
    """One sublayer: norm_sum(x + multiplier · norm_after(f(norm(x)))). Without a residual x is omitted; a
    `residual_gate` replaces the sum. With `rezero` the sum is x + α · …, with α trained and initially 0 (ReZero,
    Bachlechner et al. 2020, arXiv 2003.04887).

    The output of a part `aside` is added to the next part's input and not to x.

    A part `beside` the previous one reads the same x, and both outputs are added to it. Without a norm it reads the
    previous part's normalized input.

    A new kind is a config, a class in t2r_export.model.parts, and a line in `parts.PARTS`.
    """

    TABLE: ClassVar[str] = "t2r_export.config.parts:PARTS"
    mixes: ClassVar[bool] = True  # a mixer, which has states or reads a source; false: a feed-forward
    replaces_attention: ClassVar[bool] = False  # a conversion can put the part in the place of attention
    reads_past: ClassVar[bool] = False  # a feed-forward with states
    reads_source: ClassVar[bool] = False  # the part has a method `read`; translators only
    group: ClassVar[str] = "layers"  # group in reports: layers, crosses or encoder

    norm: NormConfig | None = None
    norm_after: NormConfig | None = None
    norm_sum: NormConfig | None = None
    multiplier: float = field(default=1.0, metadata={"between": (0, 2.0**127)})  # of float32
    residual: bool = True
    rezero: bool = False
    residual_gate: ResidualGateConfig | None = None
    beside: bool = False
    aside: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        gated = self.residual or self.residual_gate is None
        need(gated, "a residual for a residual gate", "none", "set residual to true, or leave out residual_gate")
        summed = self.residual and self.residual_gate is None
        need(summed or not self.rezero, "a residual sum with rezero", "another", "leave out rezero")
        plain = summed and not self.rezero and self.norm_sum is None and not self.beside
        need(plain or not self.aside, "a part aside with a plain residual", "another", "leave out aside")

    @property
    def label(self) -> str:
        """The kind as users select it; for attention, its mixer's kind."""
        return self.kind

    @property
    def grows(self) -> bool:
        """Whether the states grow with every token."""
        return False

    @property
    def folded(self) -> bool:
        """Whether the weights are in their exported form."""
        return False

    @property
    def borrows(self) -> bool:
        """Whether the part uses the attention weights of the layer below."""
        return False

    @property
    def lends(self) -> bool:
        """Whether the layer above can use this part's attention weights."""
        return False

    @property
    def cache_size(self) -> int:
        """Elements per token of a key/value cache that would replace the part; 0 if there is none."""
        return 0

    def check_below(self, below: Sequence[PartConfig], layer: int) -> None:
        """Raise UserError unless the parts `below` lend what this part of layer `layer` borrows."""

    def rotations(self) -> list[tuple[RotaryConfig, int]]:
        """Rotations that the part uses, each with the number of rotated dimensions per head."""
        return []
