"""The feed-forwards: what a block does to each token by itself.

Each is one `forward` in the operators of a step, so that a sequence, a step and a graph compute the same. What they
need of the model stands in its config (`dense`) or in their own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from t2r_export.config.feed_forward import FEED_FORWARDS, FeedForwardConfig, ProductKeyConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.ops import Ops, T

QUERY_EPS = 1e-5


class FeedForward(nn.Module):
    """Base of the feed-forwards."""

    def __init__(self, model: ModelConfig, config: FeedForwardConfig) -> None:
        super().__init__()

    def forward(self, x: T, ops: Ops[T]) -> T:
        """Rows (N, D) -> (N, D). Tokens do not see each other."""
        raise NotImplementedError


class Dense(FeedForward):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) where gated (Shazeer 2020)."""

    def __init__(self, model: ModelConfig, config: FeedForwardConfig) -> None:
        super().__init__(model, config)
        self.activation = model.activation
        self.gate = nn.Linear(model.width, model.ffn_size, bias=model.ffn_bias) if model.gated_ffn else None
        self.up = nn.Linear(model.width, model.ffn_size, bias=model.ffn_bias)
        self.down = nn.Linear(model.ffn_size, model.width, bias=model.ffn_bias)

    def forward(self, x: T, ops: Ops[T]) -> T:
        if self.gate is None:
            hidden = activate(ops.linear(x, self.up.weight, self.up.bias), self.activation, ops)
        else:
            gate, up = ops.linears(x, [[self.gate], [self.up]])
            hidden = ops.mul(activate(gate, self.activation, ops), up)
        return ops.linear(hidden, self.down.weight, self.down.bias)


class ProductKey(FeedForward):
    """Product-key memory (Lample et al. 2019, arXiv 1907.05242, sec. 3): a large table, of which a token reads little.

    A query's halves q₁, q₂ each score n sub-keys; the top of each, added in pairs, hold the top of all n² keys:

        s_ij = q₁·k₁_i + q₂·k₂_j      y = Σ_heads Σ_top softmax(s)_ij v_(n·i + j)

    The query goes through a layer norm where the paper has a batch norm, which spreads the use of the keys as well.
    A batch norm would in training let a token see the later ones of its own text, and its running statistics would be
    neither weights nor states; a layer norm is one function in training and in a step.

    Which keys are the top ones is a hard choice: where two scores differ by less than rounding, two providers may read
    different values, with nearly the same weight.
    """

    def __init__(self, model: ModelConfig, config: FeedForwardConfig) -> None:
        super().__init__(model, config)
        assert isinstance(config, ProductKeyConfig)
        self.config = config
        self.query = nn.Linear(model.width, config.heads * config.query_size)
        self.norm = nn.LayerNorm(config.query_size, eps=QUERY_EPS)  # the same for all heads
        self.keys = nn.Parameter(torch.empty(2 * config.heads, config.query_size // 2, config.keys))
        self.values = nn.Parameter(torch.empty(config.keys**2, model.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As the authors' code: scores of the size of one, outputs of the size of the residual stream."""
        bound = (self.config.query_size // 2) ** -0.5
        nn.init.uniform_(self.keys, -bound, bound)
        nn.init.normal_(self.values, std=self.values.shape[1] ** -0.5)

    def forward(self, x: T, ops: Ops[T]) -> T:
        heads, top = self.config.heads, self.config.top
        scores, places = self._nearest(x, ops)
        weights = ops.reshape(ops.softmax(scores), (-1, 1, heads * top))
        values = ops.embedding(ops.reshape(places, (-1, heads * top)), self.values)  # (B, heads · top, D)
        return ops.reshape(ops.matmul(weights, values), (-1, self.values.shape[1]))

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


def build_feed_forward(model: ModelConfig, config: FeedForwardConfig) -> FeedForward | None:
    """The feed-forward that `config` describes, with fresh weights, or None where a block has none."""
    name = FEED_FORWARDS[config.kind].model
    return None if name is None else resolve(name)(model, config)


def activate(x: T, name: str, ops: Ops[T]) -> T:
    """The dense feed-forward's activation, by the name that the config gives it."""
    known: dict[str, Callable[[], T]] = {
        "relu": lambda: ops.relu(x),
        "relu2": lambda: ops.mul(ops.relu(x), ops.relu(x)),  # So et al. 2021, arXiv 2109.08668
        "silu": lambda: ops.silu(x),
        "gelu": lambda: ops.gelu(x, tanh=False),
        "gelu_tanh": lambda: ops.gelu(x, tanh=True),
        "gelu_10": lambda: ops.maximum(ops.minimum(ops.gelu(x, tanh=False), 10.0), -10.0),
        "quick_gelu": lambda: ops.mul(x, ops.sigmoid(ops.mul(x, 1.702))),  # Hendrycks and Gimpel, arXiv 1606.08415
        # x · tanh(softplus(x)): Misra 2019, arXiv 1908.08681
        "mish": lambda: ops.mul(x, ops.tanh(ops.mul(ops.log_sigmoid(ops.mul(x, -1.0)), -1.0))),
    }
    return known[name]()
