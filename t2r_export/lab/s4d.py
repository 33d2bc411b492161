"""S4D (Gu et al. 2022, arXiv 2206.11893): a state space per channel with a diagonal matrix A.

    x_t = Ā x_{t-1} + B̄ u_t      y = 2 Re(C x) + D u      Ā = exp(dt A)      B̄ = (Ā - 1) / A       (zero-order hold)
    o = W_a g ⊙ σ(W_b g)         g = gelu(y)                                                    (the mixing of S4)

A is complex with A = -exp(A_log) + i A_imag, initially -1/2 + i π n for the state n (S4D-Lin), and one of each
conjugate pair is kept; or real, initially -1, -2, … (S4D-Real), where y = C x + D u. B is 1, which C absorbs.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from t2r_export.lab.config.s4d import S4DConfig
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec

SMALLEST_STEP, LARGEST_STEP = 1e-3, 1e-1  # initial range of dt


class S4D(Part):
    """Diagonal state space, GELU, and an output projection with a gate."""

    config: S4DConfig

    def __init__(self, site: Site, config: S4DConfig) -> None:
        super().__init__(site, config)
        width, size = site.width, config.state_size
        number = torch.arange(size // 2 if config.complex else size)[:, None].expand(-1, width)
        self.log_dt = nn.Parameter(torch.linspace(math.log(SMALLEST_STEP), math.log(LARGEST_STEP), width))
        if config.complex:
            self.A_log = nn.Parameter(torch.full(number.shape, math.log(0.5)))
            self.A_imag = nn.Parameter(math.pi * number)
        else:
            self.A_log = nn.Parameter(torch.log(number + 1.0))
        self.C = nn.Parameter(math.sqrt(0.5) * torch.randn(size, width))
        self.D = nn.Parameter(torch.ones(width))
        self.o = nn.Linear(width, 2 * width)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, width, size = step.ops, self.width, self.config.state_size
        run = self._complex if self.config.complex else self._real
        u, before = ops.reshape(x, (0, 1, width)), ops.reshape(state["x"], (0, size * width))
        states, after, C = run(u, before, ops)
        products = ops.mul(ops.reshape(states, (0, size, width)), C)
        ones = ops.constant([[1.0] * size], "float32", f"ones_1x{size}")
        y = ops.reshape(ops.matmul(ones, products), (0, width))
        y = ops.gelu(ops.add(y, ops.mul(x, ops.parameter(self.D))), tanh=False)
        a, b = ops.split(ops.linear(y, self.o.weight, self.o.bias), [width] * 2)
        return ops.mul(a, ops.sigmoid(b)), {"x": ops.reshape(after, (0, size, width))}

    def _real(self, u: T, before: T, ops: Ops[T]) -> tuple[T, T, T]:
        """u (N, 1, D) and the state before (B, size · D) -> states (N, size · D), the state after, and C (size, D)."""
        A = ops.mul(ops.exp(ops.parameter(self.A_log)), -1.0)
        log_decay = ops.mul(A, ops.exp(ops.parameter(self.log_dt)))
        entering = self._flat(ops.mul(ops.div(ops.expm1(log_decay), A), u), ops)
        states, after = ops.linear_recurrence(entering, ops.reshape(log_decay, (1, -1)), before)
        return states, after, ops.parameter(self.C)

    def _complex(self, u: T, before: T, ops: Ops[T]) -> tuple[T, T, T]:
        """As `_real`, for states of real parts and then imaginary parts; C includes the factors 2 and -2."""
        dt = ops.exp(ops.parameter(self.log_dt))
        real, imaginary = ops.mul(ops.exp(ops.parameter(self.A_log)), -1.0), ops.parameter(self.A_imag)
        log_decay, angle = ops.mul(real, dt), ops.mul(imaginary, dt)
        decay, cosine, half = ops.exp(log_decay), ops.cos(angle), ops.sin(ops.mul(angle, 0.5))
        turned = ops.mul(decay, ops.sin(angle))  # Im Ā
        # Re Ā - 1 = expm1(dt Re A) cos - 2 sin²(·/2): the difference itself would cancel for small dt
        less = ops.sub(ops.mul(ops.expm1(log_decay), cosine), ops.mul(ops.mul(half, half), 2.0))
        square = ops.add(ops.mul(real, real), ops.mul(imaginary, imaginary))
        enters = [
            ops.div(ops.add(ops.mul(less, real), ops.mul(turned, imaginary)), square),
            ops.div(ops.sub(ops.mul(turned, real), ops.mul(less, imaginary)), square),
        ]
        factor = ops.reshape(ops.concat([ops.mul(decay, cosine), turned], axis=0), (-1,))
        entering = self._flat(ops.mul(ops.concat(enters, axis=0), u), ops)
        states, after = ops.complex_recurrence(entering, factor, before)
        read, other = ops.split(ops.parameter(self.C), [self.config.state_size // 2] * 2, axis=0)
        return states, after, ops.concat([ops.mul(read, 2.0), ops.mul(other, -2.0)], axis=0)

    def _flat(self, x: T, ops: Ops[T]) -> T:
        """(N, size, D) -> (N, size · D)."""
        return ops.reshape(x, (0, self.config.state_size * self.width))

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec("x", "float32", (BATCH, self.config.state_size, self.width))]
