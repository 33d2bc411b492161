"""Merged attention to prefix and source, in place of self-attention and cross-attention. Imports without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.options import check_values, limited, option
from t2r_export.config.parts.attention import ACTIVATIONS, AttentionConfig, InsideConfig, JointConfig
from t2r_export.config.validation import need


@dataclass(frozen=True, kw_only=True)
class MergedConfig(InsideConfig):
    """Joint attention to prefix and source with one query and one normalizer (Li et al. 2021, arXiv 2101.00542, section
    3), for softmax and for linear attention without a delta rule.

    With `hidden`, the value and output projections are the two matrices of a feed-forward with that hidden size.
    """

    kind: ClassVar[str] = "merged"
    form: ClassVar[str] = "causal"
    reads_source: ClassVar[bool] = True

    shared: bool = False  # the prefix's projections also compute the source's keys and values
    hidden: int = 0  # hidden size of the inner feed-forward; 0: none
    hidden_bias: bool = True
    activation: str = limited("relu", choices=ACTIVATIONS)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inside.check_merged()
        self._check_plain("merged layers", "choose other cross layers")
        if self.hidden:
            self._check_hidden()

    def _check_hidden(self) -> None:
        what = "merged layers with the feed-forward inside"
        need(self.inside.grows, f"softmax in {what}", self.inside.kind, "choose it, or leave feed_forward out")
        fits = self.kv_heads == self.heads and self.hidden % self.heads == 0
        received = f"{self.kv_heads} kv heads, {self.heads} heads, ffn_size {self.hidden}"
        need(fits, f"as many kv heads as heads, a divisor of ffn_size, in {what}", received, "correct them")

    @property
    def borrows(self) -> bool:
        return False

    @property
    def lends(self) -> bool:
        return False

    def summary(self) -> str:
        shared = ", shared projections" * self.shared
        inside = f", feed-forward of {self.hidden} inside" * bool(self.hidden)
        return ", ".join(filter(None, (self.inside.summary(), f"merged with the source{shared}{inside}")))


@dataclass(frozen=True)
class MergeConfig(JointConfig):
    """Self-attention also reads the source (`MergedConfig`), instead of a cross-attention part."""

    kind: ClassVar[str] = "merged"
    WEIGHTS: ClassVar[str] = "t2r_export.lab.merge:merge"

    shared: bool = option("Share the prefix's key and value projections with the source.", False)
    feed_forward: bool = option("Move the feed-forward into the attention's value and output projections (CAN).", False)

    def __post_init__(self) -> None:
        check_values(self)

    def part(
        self, own: AttentionConfig, hidden: int = 0, hidden_bias: bool = True, activation: str = "relu"
    ) -> MergedConfig:
        kept = {field.name: getattr(own, field.name) for field in dataclasses.fields(own)}
        return MergedConfig(shared=self.shared, hidden=hidden, hidden_bias=hidden_bias, activation=activation, **kept)
