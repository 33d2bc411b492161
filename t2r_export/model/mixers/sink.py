"""A trained logit per head in the softmax's denominator, whose value is 0 (gpt-oss, OpenAI 2025, arXiv 2508.10925)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from t2r_export.model.ops import Ops, T

LARGEST = 80.0  # maximum exponent: e^80 is finite in float32, and scales the output to 0


def with_sink(y: T, scores: T, weights: T, sink: Tensor | None, restored: Callable[[T], T], ops: Ops[T]) -> T:
    """Output (B, H, T, V) of the softmax with sink logits; unchanged without them.

    Divides y by 1 + e^sink / Σ e^score; the sum is e^c / w, with the largest score c and the largest weight w.

    Args:
        y, scores, weights: rows of the softmax without sinks, (…, rows, ·).
        sink: (H).
        restored: rows -> (B, H, T, ·).
    """
    if sink is None:
        return restored(y)
    top, largest = (restored(ops.reduce_max(x)) for x in (scores, weights))
    above = ops.minimum(ops.sub(ops.reshape(ops.parameter(sink), (-1, 1, 1)), top), LARGEST)
    return ops.div(restored(y), ops.add(ops.mul(largest, ops.exp(above)), 1.0))
