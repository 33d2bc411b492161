"""A model on this provider against ONNX Runtime's own: equal, not claimed, or invalid for both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort
from one_node import NAME, devices
from onnx import ModelProto

BOUND = 1e-4  # of the largest finite number: sums of a graph's products, in another order
Feeds = Mapping[str, np.ndarray]


def plain_options() -> ort.SessionOptions:
    plain = ort.SessionOptions()
    plain.log_severity_level = 4
    plain.intra_op_num_threads = 1
    return plain


def opened(made: ModelProto | bytes, threads: int = 2) -> ort.InferenceSession:
    """A session on the provider, and on ONNX Runtime's where that claims nothing."""
    plain = plain_options()
    plain.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    plain.add_provider_for_devices(devices(), {"threads": str(threads)})
    return ort.InferenceSession(made if isinstance(made, bytes) else made.SerializeToString(), plain)


def is_claimed(session: ort.InferenceSession) -> bool:
    return {part.ep_name for part in session.get_provider_graph_assignment_info()} == {NAME}


def compared(made: ModelProto, feeds: Feeds) -> str:
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
        expected = ort.InferenceSession(made.SerializeToString(), plain, providers=["CPUExecutionProvider"]).run(
            None, dict(feeds)
        )
    except Exception:
        return "invalid"
    for theirs, ours in zip(expected, session.run(None, dict(feeds)), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.dtype != np.float32:
            np.testing.assert_array_equal(ours, theirs)
            continue
        largest = np.abs(theirs[np.isfinite(theirs)]).max(initial=1)
        np.testing.assert_allclose(ours, theirs, rtol=BOUND, atol=BOUND * float(largest))
    return "equal"
