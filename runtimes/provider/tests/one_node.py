"""Models of one node, on this provider and on ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_t2r as plugin
from onnx import NodeProto, helper, numpy_helper

Array = np.ndarray | np.generic
Arrays = list[np.ndarray]
NAME = plugin.get_ep_name()


def devices() -> list[ort.OrtEpDevice]:
    def offered() -> list[ort.OrtEpDevice]:
        return [device for device in ort.get_ep_devices() if device.ep_name == NAME]

    if not offered():
        ort.register_execution_provider_library(NAME, plugin.get_library_path())
    return offered()


def options(threads: int | str = 2) -> ort.SessionOptions:
    """Session options for the provider, without fallback to another one."""
    found = ort.SessionOptions()
    found.log_severity_level = 4
    found.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    found.add_session_config_entry(
        "optimization.disable_specified_optimizers", "ConstantFolding"
    )  # as t2r-runtime does
    found.add_provider_for_devices(devices(), {"threads": str(threads)})
    return found


def model(
    op: str,
    inputs: Sequence[np.ndarray | np.generic | None],
    outputs: int = 1,
    fixed: Sequence[int] = (),
    **attributes: Any,
) -> bytes:
    """A model of one node of the operator `op`.

    Args:
        inputs: example inputs; None is an omitted input.
        fixed: indices of the inputs that are constants of the model.
    """
    inputs = [x if x is None else np.asarray(x) for x in inputs]
    while inputs[-1] is None:
        inputs.pop()
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    domain = "com.microsoft" if op == "MatMulNBits" else ""
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="node", domain=domain, **attributes)
    examples = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    constants = {name: x for name, x in examples.items() if int(name[1:]) in fixed}
    return several([node], {name: x for name, x in examples.items() if name not in constants}, constants)


def several(
    nodes: Sequence[NodeProto], given: Mapping[str, Array], fixed: Mapping[str, Array], any_batch: bool = False
) -> bytes:
    """A model of nodes, with example inputs and constants; its outputs are the last node's and "extra".

    Args:
        any_batch: whether the first dimension of the inputs is dynamic.
    """
    value = helper.make_tensor_value_info
    outputs = [*nodes[-1].output, *(name for node in nodes for name in node.output if name == "extra")]
    graph = helper.make_graph(
        nodes,
        "several",
        [
            value(
                name,
                helper.np_dtype_to_tensor_dtype(x.dtype),
                [None if any_batch else len(x), *x.shape[1:]] if x.ndim else [],
            )
            for name, x in given.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in fixed.items()],
    )
    domains = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString()


def on_provider(made: bytes, feeds: Mapping[str, np.ndarray], threads: int = 2) -> Arrays:
    return ort.InferenceSession(made, options(threads)).run(None, dict(feeds))


def on_cpu(made: bytes, feeds: Mapping[str, np.ndarray]) -> Arrays:
    plain = ort.SessionOptions()
    plain.intra_op_num_threads = 1
    return ort.InferenceSession(made, plain, providers=["CPUExecutionProvider"]).run(None, dict(feeds))


def compare(
    op: str, *inputs: np.ndarray | np.generic | None, fixed: Sequence[int] = (), bound: float = 2e-6, **other: Any
) -> None:
    """Assert that both providers compute the same for one node."""
    made = model(op, inputs, fixed=fixed, **other)
    same_results(
        made, {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None and i not in fixed}, bound
    )


def same_results(made: bytes, feeds: Mapping[str, np.ndarray], bound: float = 2e-6) -> None:
    """Assert that both providers compute the same; floats within `bound` of the largest, or of 1."""
    for theirs, ours in zip(on_cpu(made, feeds), on_provider(made, feeds), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if ours.dtype != np.float32:
            np.testing.assert_array_equal(ours, theirs)
            continue
        finite = np.abs(theirs[np.isfinite(theirs)])
        np.testing.assert_allclose(ours, theirs, rtol=bound, atol=bound * float(finite.max(initial=1)))
