"""Averages in place of attention (AAN, Zhang et al. 2018, arXiv 1805.00631).

    m_t = (x_1 + … + x_t) / t      g_t = FFN(m_t), or m_t      i, f = σ(W [x_t; g_t] + b)      y_t = i · x_t + f · g_t

with FFN(m) = W₂ relu(W₁ m + b₁) + b₂. The state is the sum; the position gives the divisor.

Sums over T tokens are computed as linear attention with one head and the constant feature 1.
"""

from __future__ import annotations

from torch import nn

from t2r_export.lab.config.average import AverageConfig
from t2r_export.model.ops import State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class Average(Part):
    """The gated mean of the inputs."""

    needs_position = True

    def __init__(self, site: Site, config: AverageConfig) -> None:
        super().__init__(site, config)
        width = site.width
        if config.ffn_size:
            self.up, self.down = nn.Linear(width, config.ffn_size), nn.Linear(config.ffn_size, width)
        self.has_ffn = config.ffn_size > 0
        self.gates = nn.Linear(2 * width, 2 * width)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, D = step.ops, self.width
        if not ops.many:
            total = ops.accumulate(state["sum"], x)
            return self._gated(x, total, step), {"sum": total}
        one = step.shared("one", lambda: ops.add(ops.mul(step.numbers, 0.0), 1.0))  # (B, 1, T, 1)
        before = ops.reshape(state["sum"], (0, 1, 1, D))
        sums, _, after, _ = ops.linear_attention(one, one, ops.split_heads(x, 1), before, None)
        return self._gated(x, ops.merge_heads(sums), step), {"sum": ops.reshape(after, (0, D))}

    def _gated(self, x: T, sums: T, step: Step[T]) -> T:
        """Rows x (N, D) and their cumulative sums (N, D) -> y (N, D)."""
        ops = step.ops
        count = step.shared("tokens with this", lambda: ops.reshape(ops.add(step.numbers, 1.0), (-1, 1)))
        g = ops.div(sums, count)
        if self.has_ffn:
            hidden = ops.relu(ops.linear(g, self.up.weight, self.up.bias))
            g = ops.linear(hidden, self.down.weight, self.down.bias)
        shares = ops.sigmoid(ops.linear(ops.concat([x, g]), self.gates.weight, self.gates.bias))
        of_x, of_g = ops.split(shares, [self.width] * 2)
        return ops.add(ops.mul(of_x, x), ops.mul(of_g, g))

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec("sum", "float32", (BATCH, self.width))]
