"""Open what was written and run it once: a graph that does not run is never handed over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort

from t2r_export.errors import CheckFailed
from t2r_runtime.errors import printable
from t2r_runtime.interface import check_interface, first_feeds
from t2r_runtime.refusals import OPSET_SWITCH
from t2r_runtime.session import forms
from t2r_runtime.signature import Signature


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
        with any_opset():
            session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        signature = Signature.from_metadata(session.get_modelmeta().custom_metadata_map)
        check_interface(signature, forms(session.get_inputs()), forms(session.get_outputs()))
        session.run(None, first_feeds(signature))
    except Exception as error:  # ONNX Runtime's errors have no common base below Exception
        raise CheckFailed(
            f"the graph that was made does not run, and was not kept: {printable(error)}; choose another --target or "
            "leave an option out"
        ) from error
    return signature


@contextlib.contextmanager
def any_opset() -> Iterator[None]:
    """Within, ONNX Runtime opens graphs of an opset newer than its newest release, as those of target standard are."""
    before = os.environ.get(OPSET_SWITCH)
    os.environ[OPSET_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPSET_SWITCH]
        else:
            os.environ[OPSET_SWITCH] = before
