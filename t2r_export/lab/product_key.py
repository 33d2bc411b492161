"""Product-key memory."""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.lab.config.product_key import ProductKeyConfig
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step

QUERY_EPS = 1e-5


class ProductKey(Part):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242, section 3): sparse reads of a large table.

    A query's halves q₁, q₂ each score n sub-keys; the top of each, added in pairs, hold the top of all n² keys:

        s_ij = q₁·k₁_i + q₂·k₂_j      y = Σ_heads Σ_top softmax(s)_ij v_(n·i + j)

    Queries have a layer norm instead of the paper's batch norm, which would leak later tokens during training.

    If scores differ by less than rounding, providers may select different keys with nearly equal weights.
    """

    config: ProductKeyConfig

    def __init__(self, site: Site, config: ProductKeyConfig) -> None:
        super().__init__(site, config)
        self.query = nn.Linear(site.width, config.heads * config.query_size)
        self.norm = nn.LayerNorm(config.query_size, eps=QUERY_EPS)  # shared by all heads
        self.keys = nn.Parameter(torch.empty(2 * config.heads, config.query_size // 2, config.keys))
        self.values = nn.Parameter(torch.empty(config.keys**2, site.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in the authors' code: scores and outputs of unit scale."""
        bound = (self.config.query_size // 2) ** -0.5
        nn.init.uniform_(self.keys, -bound, bound)
        nn.init.normal_(self.values, std=self.values.shape[1] ** -0.5)

    @property
    def idle_parameters(self) -> int:
        rows, width = self.values.shape
        return max(0, rows - self.config.heads * self.config.top) * width

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, heads, top = step.ops, self.config.heads, self.config.top
        scores, places = self._nearest(x, ops)
        weights = ops.reshape(ops.softmax(scores), (-1, 1, heads * top))
        values = ops.embedding(ops.reshape(places, (-1, heads * top)), self.values)  # (B, heads · top, D)
        return ops.reshape(ops.matmul(weights, values), (-1, self.values.shape[1])), {}

    def _nearest(self, x: T, ops: Ops[T]) -> tuple[T, T]:
        """Rows x (N, D) -> scores of the top keys and indices of their values, (N, heads, top) each."""
        heads, size, keys, top = self.config.heads, self.config.query_size, self.config.keys, self.config.top
        query = ops.reshape(ops.linear(x, self.query.weight, self.query.bias), (-1, heads, size))
        query = ops.layer_norm(query, self.norm.weight, self.norm.bias, QUERY_EPS)
        halves = ops.reshape(query, (-1, 2 * heads, 1, size // 2))
        scores = ops.reshape(ops.matmul(halves, ops.parameter(self.keys)), (-1, heads, 2, keys))
        scores, found = ops.top_k(scores, top)
        best, chosen = ops.top_k(self._pairs(scores, 1, ops), top)
        return best, ops.gather(self._pairs(found, keys, ops), chosen)

    def _pairs(self, halves: T, stride: int, ops: Ops[T]) -> T:
        """Sums of all pairs, stride · first half + second half: (N, heads, 2, top) -> (N, heads, top²)."""
        heads, top = self.config.heads, self.config.top
        first, second = ops.split(halves, [1, 1], axis=2)
        first = ops.reshape(first, (-1, heads, top, 1))
        pairs = ops.add(first if stride == 1 else ops.mul(first, stride), second)
        return ops.reshape(pairs, (-1, heads, top * top))
