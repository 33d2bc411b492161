"""A model on this provider against ONNX Runtime's own: equal, not claimed, or invalid for both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort
from one_node import NAME, devices
from onnx import ModelProto, NodeProto

BOUND = 1e-4  # of the largest finite number: sums of a graph's products, in another order
Feeds = Mapping[str, np.ndarray]


def plain_options() -> ort.SessionOptions:
    plain = ort.SessionOptions()
    plain.log_severity_level = 4
    plain.intra_op_num_threads = 1
    return plain


def ends_onnxruntime(node: NodeProto) -> bool:
    """Whether it ends ONNX Runtime's own process: without an input or output, or with an attribute out of range."""
    numbers = {each.name: each.i for each in node.attribute}
    if node.op_type == "Split":
        return "" in node.output or numbers.get("num_outputs", len(node.output)) != len(node.output)
    if node.op_type == "LayerNormalization":
        return "" in node.input or not -9 < numbers.get("axis", 0) < 9
    return node.op_type in ("Max", "Min") and "" in node.input


def opened(made: ModelProto | bytes, threads: int = 2) -> ort.InferenceSession:
    """A session on the provider, and on ONNX Runtime's where that claims nothing."""
    plain = plain_options()
    plain.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    plain.add_provider_for_devices(devices(), {"threads": str(threads)})
    return ort.InferenceSession(made if isinstance(made, bytes) else made.SerializeToString(), plain)


def is_claimed(session: ort.InferenceSession) -> bool:
    return {part.ep_name for part in session.get_provider_graph_assignment_info()} == {NAME}


def spread(session: ort.InferenceSession, feeds: Feeds, output: int, expected: np.ndarray) -> np.ndarray:
    """Largest difference of each number where the inputs differ by rounding: a quotient by almost nothing jumps."""
    numbers = np.random.default_rng(0)
    largest = np.zeros_like(expected)
    for _ in range(8):
        near = {
            name: x * numbers.uniform(1 - 2e-7, 1 + 2e-7, x.shape).astype(np.float32) if x.dtype == np.float32 else x
            for name, x in feeds.items()
        }
        with np.errstate(invalid="ignore"):  # of equal infinities
            difference = np.abs(session.run(None, near)[output] - expected)
        largest = np.maximum(largest, np.where(np.isfinite(difference), difference, 0))
    return largest


def compared(made: ModelProto, feeds: Feeds, bound: float = BOUND) -> str:
    """What became of the model: "equal", "not claimed" or "invalid", for both.

    Raises:
        AssertionError: claimed, and other results than ONNX Runtime's without its optimizations, or an error.
    """
    plain = plain_options()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = opened(made)
    except Exception:  # neither loads it: ONNX Runtime's checks precede the provider's
        return "invalid"
    if not is_claimed(session):
        return "not claimed"
    try:
        other = ort.InferenceSession(made.SerializeToString(), plain, providers=["CPUExecutionProvider"])
        expected = other.run(None, dict(feeds))
    except Exception:
        return "invalid"
    for output, (theirs, ours) in enumerate(zip(expected, session.run(None, dict(feeds)), strict=True)):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.dtype != np.float32:
            np.testing.assert_array_equal(ours, theirs)
            continue
        allowed = bound * np.abs(theirs[np.isfinite(theirs)]).max(initial=1)
        if not np.allclose(ours, theirs, bound, allowed, equal_nan=True):
            allowed = allowed + 10 * spread(other, feeds, output, theirs)
            np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
            np.testing.assert_array_equal(ours[~np.isfinite(ours)], theirs[~np.isfinite(theirs)])
            finite = np.isfinite(ours)
            np.testing.assert_array_less(np.abs(ours[finite] - theirs[finite]), allowed[finite])
    return "equal"
