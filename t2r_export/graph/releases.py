"""The first release of ONNX Runtime that runs a graph, by its operator sets and operators.

The releases were found by `python -m t2r_runtime.conformance models/tiny` with the wheels 1.19.2 to 1.32.0, and by
opening fused graphs, standard graphs and graphs of experts with them. Opset 21 and IR 10 need 1.18 (ONNX Runtime's
table of versions).
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from t2r_runtime.contract.signature import PREFIX

ONNXRUNTIME = PREFIX + "onnxruntime"  # informative; absent if LEAST suffices
LEAST = "1.18"
OPSETS = {27: "1.32"}  # default-domain opsets that LEAST does not support
OPERATORS = {"GatherBlockQuantized": "1.20", "LinearAttention": "1.25.1", "MoE": "1.23.2", "QMoE": "1.31"}
EIGHT_BITS = "1.23"  # 8-bit MatMulNBits and GatherBlockQuantized; 1.22 opens such graphs, but fails in some products


def first_release(model: onnx.ModelProto) -> str:
    """The first release of ONNX Runtime that opens `model`, as in "1.25.1"."""
    found = [LEAST, *(OPSETS[o.version] for o in model.opset_import if not o.domain and o.version in OPSETS)]
    for node in _nodes(model.graph):
        if node.domain:
            found.append(OPERATORS.get(node.op_type, LEAST))
            if any(a.name == "bits" and a.i == 8 for a in node.attribute):
                found.append(EIGHT_BITS)
    return max(found, key=_order)


def release_note(model: onnx.ModelProto) -> dict[str, str]:
    """The metadata entry that names `first_release`, if LEAST does not suffice."""
    release = first_release(model)
    return {} if release == LEAST else {ONNXRUNTIME: f'"{release}"'}


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
