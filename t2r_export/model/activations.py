"""Activations of feed-forwards."""

from __future__ import annotations

from collections.abc import Callable

from t2r_export.model.primitives import Primitives, T


def activate(x: T, name: str, ops: Primitives[T]) -> T:
    """Apply an activation of t2r_export.config.parts.attention.ACTIVATIONS."""
    known: dict[str, Callable[[], T]] = {
        "relu": lambda: ops.relu(x),
        "relu2": lambda: _squared(ops.relu(x), ops),  # So et al. 2021, arXiv 2109.08668
        "silu": lambda: ops.silu(x),
        "gelu": lambda: ops.gelu(x, tanh=False),
        "gelu_tanh": lambda: ops.gelu(x, tanh=True),
        "gelu_10": lambda: ops.maximum(ops.minimum(ops.gelu(x, tanh=False), 10.0), -10.0),
        "quick_gelu": lambda: ops.mul(x, ops.sigmoid(ops.mul(x, 1.702))),  # Hendrycks and Gimpel, arXiv 1606.08415
        # x · tanh(softplus(x)): Misra 2019, arXiv 1908.08681
        "mish": lambda: ops.mul(x, ops.tanh(ops.mul(ops.log_sigmoid(ops.mul(x, -1.0)), -1.0))),
    }
    return known[name]()


def _squared(x: T, ops: Primitives[T]) -> T:
    return ops.mul(x, x)
