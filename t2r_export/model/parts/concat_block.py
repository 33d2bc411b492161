"""Zamba2's block of attention and a feed-forward (Glorioso et al. 2024, arXiv 2411.15242, section 2).

    u = norm([x; e])        a = W_o attention(u)        y = W (down(act(gate n) ⊙ up n)),  n = norm(a)

x is the stream and e the token's embedding; u is twice as wide as the stream. There is no residual inside.
"""

from __future__ import annotations

from torch import Tensor, nn

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import ConcatBlockConfig, DenseConfig
from t2r_export.model.mixers.norms import Norm
from t2r_export.model.ops import State, T
from t2r_export.model.parts.attention import Attention
from t2r_export.model.parts.base import Site
from t2r_export.model.parts.dense import Dense
from t2r_export.model.step import EMBEDDING, Step


class ConcatBlock(Attention):
    """Norm of both, attention, norm, feed-forward, output."""

    config: ConcatBlockConfig

    def __init__(self, site: Site, config: ConcatBlockConfig) -> None:
        super().__init__(Site(2 * site.width, site.rotations, site.lends), config)
        self.outer, c = site, config
        norm = NormConfig("rms", c.norm_eps)
        self.input_norm, self.ffn_norm = Norm(norm, self.width), Norm(norm, site.width)
        self.o = nn.Linear(c.heads * c.head_size, site.width, bias=c.output_bias)
        self.dense = Dense(site, DenseConfig(size=c.size, activation=c.activation, gated=True, bias=c.bias))
        self.out = nn.Linear(site.width, site.width, bias=False)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        both = self.input_norm(ops.concat([x, step.borrowed(EMBEDDING)]), ops)
        y, state = super().forward(both, state, step)
        y, _ = self.dense(self.ffn_norm(y, ops), {}, step)
        return ops.linear(y, self.out.weight, None), state

    def statistics(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> dict[str, Tensor]:
        both = self.input_norm(step.ops.concat([x, step.borrowed(EMBEDDING)]), step.ops)
        return super().statistics(both, state, step)

    def why_not_foldable(self) -> str | None:
        return super().why_not_foldable() or "its projections read the embedding too"

    def _remade(self, inside: MixerConfig) -> Attention:
        raise NotImplementedError  # it never folds
