"""Open what was written and run it once: a graph that does not run is never handed over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnxruntime as ort

from t2r_export.errors import CheckFailed
from t2r_runtime.errors import printable
from t2r_runtime.interface import Form, check_interface, first_feeds
from t2r_runtime.session import TYPES
from t2r_runtime.signature import Signature

_OPSET_SWITCH = "ALLOW_RELEASED_ONNX_OPSET_ONLY"


def run_once(step: Path) -> None:
    """One run of the graph at `step`, and of each companion that it names, at the start of a text on the CPU.

    Without ONNX Runtime's optimizations, which would copy all weights: an export of 112 MB took 270 MB more
    with them and takes 145 MB more without, of which a file of weights that is mapped can be given back.

    Raises:
        CheckFailed: ONNX Runtime refuses one of them, or fails in it, or its inputs and outputs are not those of its
            metadata.
    """
    signature = _run(step)
    for name in signature.graphs.values():
        _run(step.with_name(name))


def _run(path: Path) -> Signature:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4  # what goes wrong arrives as an exception
    try:
        with _any_opset():
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        signature = Signature.from_metadata(session.get_modelmeta().custom_metadata_map)
        ends = session.get_inputs(), session.get_outputs()
        check_interface(
            signature, *({n.name: (TYPES.get(n.type, n.type), tuple(n.shape)) for n in end} for end in ends)
        )
        session.run(None, first_feeds(signature))
    except Exception as error:  # ONNX Runtime's errors have no common base below Exception
        raise CheckFailed(
            f"the graph that was made does not run, and was not kept: {printable(error)}; choose another --target or "
            "leave an option out"
        ) from error
    return signature


def _forms(nodes: Sequence[ort.NodeArg]) -> dict[str, Form]:
    return {node.name: (TYPES.get(node.type, node.type), tuple(node.shape)) for node in nodes}


@contextlib.contextmanager
def _any_opset() -> Iterator[None]:
    """Within, ONNX Runtime opens graphs of an opset newer than its newest release, as those of target standard are."""
    before = os.environ.get(_OPSET_SWITCH)
    os.environ[_OPSET_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_OPSET_SWITCH]
        else:
            os.environ[_OPSET_SWITCH] = before
