"""Product-key memory: a feed-forward that reads a few rows of a large table."""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.parts import ProductKeyConfig
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.signature import StateSpec

QUERY_EPS = 1e-5


class ProductKey(Part):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242, sec. 3): a large table, of which a token reads little.

    A query's halves q₁, q₂ each score n sub-keys; the top of each, added in pairs, hold the top of all n² keys:

        s_ij = q₁·k₁_i + q₂·k₂_j      y = Σ_heads Σ_top softmax(s)_ij v_(n·i + j)

    The query goes through a layer norm where the paper has a batch norm, which spreads the use of the keys as well.
    A batch norm would in training let a token see the later ones of its own text, and its running statistics would be
    neither weights nor states; a layer norm is one function in training and in a step.

    Which keys are the top ones is a hard choice: where two scores differ by less than rounding, two providers may read
    different values, with nearly the same weight.
    """

    config: ProductKeyConfig

    def __init__(self, site: Site, config: ProductKeyConfig) -> None:
        super().__init__(site, config)
        self.query = nn.Linear(site.width, config.heads * config.query_size)
        self.norm = nn.LayerNorm(config.query_size, eps=QUERY_EPS)  # the same for all heads
        self.keys = nn.Parameter(torch.empty(2 * config.heads, config.query_size // 2, config.keys))
        self.values = nn.Parameter(torch.empty(config.keys**2, site.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the authors' code: scores of the size of one, outputs of the size of the residual stream."""
        bound = (self.config.query_size // 2) ** -0.5
        nn.init.uniform_(self.keys, -bound, bound)
        nn.init.normal_(self.values, std=self.values.shape[1] ** -0.5)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, heads, top = step.ops, self.config.heads, self.config.top
        scores, places = self._nearest(x, ops)
        weights = ops.reshape(ops.softmax(scores), (-1, 1, heads * top))
        values = ops.embedding(ops.reshape(places, (-1, heads * top)), self.values)  # (B, heads · top, D)
        return ops.reshape(ops.matmul(weights, values), (-1, self.values.shape[1])), {}

    def state_spec(self) -> list[StateSpec]:
        return []

    def _nearest(self, x: T, ops: Ops[T]) -> tuple[T, T]:
        """x (B, D) -> the scores of the top keys and the numbers of their values, (B, heads, top) each."""
        heads, size, keys, top = self.config.heads, self.config.query_size, self.config.keys, self.config.top
        query = ops.reshape(ops.linear(x, self.query.weight, self.query.bias), (-1, heads, size))
        query = ops.layer_norm(query, self.norm.weight, self.norm.bias, QUERY_EPS)
        halves = ops.reshape(query, (-1, 2 * heads, 1, size // 2))
        scores = ops.reshape(ops.matmul(halves, ops.parameter(self.keys)), (-1, heads, 2, keys))
        scores, found = ops.top_k(scores, top)
        best, chosen = ops.top_k(self._pairs(scores, 1, ops), top)
        return best, ops.gather(self._pairs(found, keys, ops), chosen)

    def _pairs(self, halves: T, stride: int, ops: Ops[T]) -> T:
        """What the first half found times `stride`, plus what the second found: (B, heads, 2, top) -> all pairs,
        (B, heads, top²)."""
        heads, top = self.config.heads, self.config.top
        first, second = ops.split(halves, [1, 1], axis=2)
        first = ops.reshape(first, (-1, heads, top, 1))
        pairs = ops.add(first if stride == 1 else ops.mul(first, stride), second)
        return ops.reshape(pairs, (-1, heads, top * top))
