"""Bidirectional attention of encoders, without states: softmax (Vaswani et al. 2017, section 3.2.3) and linear."""

from __future__ import annotations

from torch import Tensor

from t2r_export.config.mixers import LinearConfig
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes, Packing
from t2r_export.model.mixers.cross import SourceSums
from t2r_export.model.mixers.linear import ROTATED
from t2r_export.model.mixers.source import attend_source
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step


class SoftmaxEncoder(AttentionMixer):
    """Multi-head attention with grouped key/value heads."""

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        return attend_source(heads.q, heads.k, heads.v, self.sizes, step), {}


class LinearEncoder(AttentionMixer):
    """Bidirectional linear attention with any feature map."""

    def __init__(self, sizes: HeadSizes, config: LinearConfig) -> None:
        super().__init__(sizes, config)
        self.over = SourceSums(sizes, config)

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        S, z = self.over.sums(heads.k, heads.v, step)
        return self.over(heads.q, S, z, step.ops), {}

    def packed_sizes(self) -> tuple[int, int]:
        return self.over.maps.of_queries.argument_size, 0

    def why_not_foldable(self) -> str | None:
        if self.sizes.rope is not None:
            return ROTATED
        return None

    def packing(self) -> Packing:
        return self.over.packing()

    def fold(self, like: Tensor) -> LinearEncoder:
        over = self.over.fold(like)
        made = LinearEncoder(self.sizes, over.config)
        made.over = over
        return made
