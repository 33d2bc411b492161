"""The dense feed-forward."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from t2r_export.config.parts import DenseConfig
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step


class Dense(Part):
    """down(act(up(x))), or down(act(gate(x)) · up(x)) if gated (Shazeer 2020)."""

    config: DenseConfig

    def __init__(self, site: Site, config: DenseConfig) -> None:
        super().__init__(site, config)
        width, size, bias = site.width, config.size, config.bias
        self.gate = nn.Linear(width, size, bias=bias) if config.gated else None
        self.up = nn.Linear(width, size, bias=bias)
        self.down = nn.Linear(size, width, bias=bias)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, activation = step.ops, self.config.activation
        if self.gate is None:
            hidden = activate(ops.linear(x, self.up.weight, self.up.bias), activation, ops)
        else:
            gate, up = ops.linears(x, [[self.gate], [self.up]])
            hidden = ops.mul(activate(gate, activation, ops), up)
        return ops.linear(hidden, self.down.weight, self.down.bias), {}


def activate(x: T, name: str, ops: Ops[T]) -> T:
    """Apply an activation of t2r_export.config.parts.attention.ACTIVATIONS."""
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
