"""Griffin's recurrent block (De et al. 2024, arXiv 2402.19427, sections 2.3 and 2.4), as in RecurrentGemma.

    u = conv(W_x x)    i, r = σ(A u), σ(B u)    log a = -8 r softplus(Λ)    s_t = a s_{t-1} + √(1 - a²) (i ⊙ u)
    o = W_o (act(W_y x) ⊙ s)

A and B are block-diagonal; every projection has a bias. The first token's input is unscaled: its √(1 - a²) is 1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.parts import RGLRUConfig
from t2r_export.model.activations import activate
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class RGLRU(Part):
    """Two branches: an activation, and a convolution before the recurrent unit."""

    config: RGLRUConfig
    needs_position = True

    def __init__(self, site: Site, config: RGLRUConfig) -> None:
        super().__init__(site, config)
        c, inner = config, config.size // config.blocks
        self.y, self.x = nn.Linear(site.width, c.size), nn.Linear(site.width, c.size)
        self.conv = ShortConvolution(c.taps, c.size, bias=True)
        self.input_weight, self.decay_weight = (
            nn.Parameter(inner**-0.5 * torch.randn(c.blocks, inner, inner)) for _ in range(2)
        )
        self.input_bias, self.decay_bias = (nn.Parameter(torch.zeros(c.blocks, inner)) for _ in range(2))
        self.rate = nn.Parameter(torch.log(torch.expm1(torch.linspace(0.001, 0.1, c.size))))
        self.o = nn.Linear(c.size, site.width)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        y, u = ops.linears(x, [[self.y], [self.x]])
        u, conv = self.conv(u, state["conv"], ops)
        entering = block_linear(u, self.input_weight, self.input_bias, ops)
        staying = block_linear(u, self.decay_weight, self.decay_bias, ops)
        first = step.shared("first", lambda: _first(step))
        s, after = rg_lru(u, entering, staying, self.rate, first, state["s"], ops)
        rows = ops.mul(s, activate(y, self.config.activation, ops))
        return ops.linear(rows, self.o.weight, self.o.bias), {"s": after, "conv": conv}

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec("s", "float32", (BATCH, self.config.size)), self.conv.state_spec()]


def _first(step: Step[T]) -> T:
    """Rows (N, 1), 1 for the first token of a text, else 0."""
    ops = step.ops
    return ops.merge_heads(ops.sub(1.0, ops.minimum(step.numbers, 1.0)))


def rg_lru(u: T, input_logits: T, decay_logits: T, rate: Tensor, first: T, state: T, ops: Ops[T]) -> tuple[T, T]:
    """The real-gated linear recurrent unit (De et al. 2024, arXiv 2402.19427, eq. 1 to 4).

        log a = -8 · sigmoid(decay_logits) · softplus(rate)      y_t = a y_{t-1} + √(1 - a²) sigmoid(input_logits) u

    Args:
        u, input_logits, decay_logits: rows (N, D). rate: (D).
        first: rows (N, 1), 1 for the first token of a text, whose input is unscaled, else 0.
        state: y before, (B, D); zeros before the first token.

    Returns:
        y, rows (N, D), and y after the last token (B, D).
    """
    rates = ops.mul(ops.softplus(ops.parameter(rate)), -8.0)
    log_gate = ops.mul(ops.sigmoid(decay_logits), rates)
    # 1 - a² would cancel for a near 1
    entering = ops.sqrt(ops.mul(ops.expm1(ops.mul(log_gate, 2.0)), -1.0))
    entering = ops.add(entering, ops.mul(ops.sub(1.0, entering), first))
    x = ops.mul(ops.mul(u, ops.sigmoid(input_logits)), entering)
    return ops.linear_recurrence(x, log_gate, state)


def block_linear(x: T, weight: Tensor, bias: Tensor, ops: Ops[T]) -> T:
    """A block-diagonal projection of rows x (N, blocks · I): weight (blocks, I, O), bias (blocks, O)."""
    blocks = weight.shape[0]
    y = ops.matmul(ops.split_heads(x, blocks), ops.parameter(weight))  # (B, blocks, T, O)
    return ops.add(ops.merge_heads(y), ops.reshape(ops.parameter(bias), (bias.numel(),)))
