"""Open what was written and run it once: a graph that does not run is never handed over."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort

from t2r_export.errors import CheckFailed
from t2r_runtime.contract.signature import BATCH, PAST, Signature
from t2r_runtime.errors import printable
from t2r_runtime.session.interface import check_interface, first_feeds
from t2r_runtime.session.refusals import OPSET_SWITCH
from t2r_runtime.session.session import forms


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


def run_genai(path: Path, signature: Signature) -> None:
    """Runs of one token and of two of the graph that t2r_export.graph.genai makes of a step graph's, as `run_once`."""
    with _refusing():
        session = _session(path)
        states = {
            value.name: np.zeros([1 if d == BATCH else d if isinstance(d, int) else 0 for d in value.shape], np.float32)
            for value in session.get_inputs()
            if value.name.startswith(PAST)
        }
        for count in (1, 2):
            ids = np.arange(count)[None] % signature.vocab_size
            given = {value.name: ids for value in session.get_inputs() if value.name not in states}
            session.run(None, {**given, **states})


def _run(path: Path) -> Signature:
    with _refusing():
        session = _session(path)
        signature = Signature.from_metadata(session.get_modelmeta().custom_metadata_map)
        check_interface(signature, forms(session.get_inputs()), forms(session.get_outputs()))
        session.run(None, first_feeds(signature))
    return signature


def _session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.enable_mem_reuse = False  # to plan it takes longer than this one run
    options.log_severity_level = 4  # what goes wrong arrives as an exception
    with any_opset():
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Raise CheckFailed for whatever goes wrong within."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's errors have no common base below Exception
        raise CheckFailed(
            f"the graph that was made does not run, and was not kept: {printable(error)}; choose another --target or "
            "leave an option out"
        ) from error


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
