"""Trial run: open the written graph and run it once, so that a broken graph is never delivered."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from t2r_export.errors import CheckFailed
from t2r_runtime.contract.signature import INPUT_IDS, Signature
from t2r_runtime.contract.state_spec import BATCH, PAST, StateSpec
from t2r_runtime.errors import printable
from t2r_runtime.session.interface import check_interface, first_feeds
from t2r_runtime.session.refusals import OPSET_SWITCH
from t2r_runtime.session.session import forms


def run_once(step: Path) -> None:
    """Run the graph at `step` and its companions once, from initial states on the CPU.

    ONNX Runtime's optimizations are off because they copy all weights: for an export of 112 MB they need 270 MB instead
    of 145 MB.

    Raises:
        CheckFailed: ONNX Runtime cannot open or run one of them, or its inputs and outputs are not those of its
            metadata.
    """
    signature = _run(step)
    for name in signature.graphs.values():
        _run(step.with_name(name))


def run_genai(path: Path, signature: Signature) -> None:
    """Run the graph of t2r_export.graph.genai with one and with two tokens, like `run_once`."""
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


def run_triton(path: Path, states: Sequence[StateSpec]) -> None:
    """Run the graph of t2r_export.graph.triton once with two rows, like `run_once`."""
    with _refusing():
        session = _session(path)
        given = {spec.past: np.full(spec.dims(2, 0), spec.initial, spec.dtype) for spec in states}
        _, shape = forms(session.get_inputs())[INPUT_IDS]
        session.run(None, {**given, INPUT_IDS: np.zeros((2,) * len(shape), np.int64)})


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
    options.enable_mem_reuse = False  # planning takes longer than this single run
    options.log_severity_level = 4  # errors arrive as exceptions, so no log is needed
    with any_opset():
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn any exception raised inside into CheckFailed."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's errors have no common base below Exception
        raise CheckFailed(
            f"the graph that was made does not run, and was not kept: {printable(error)}; choose another --target or "
            "leave an option out"
        ) from error


@contextlib.contextmanager
def any_opset() -> Iterator[None]:
    """Allow ONNX Runtime to open graphs of unreleased opsets (target standard)."""
    before = os.environ.get(OPSET_SWITCH)
    os.environ[OPSET_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPSET_SWITCH]
        else:
            os.environ[OPSET_SWITCH] = before
