"""Shared functions of the schemes: the quantizer interface, and access to the projections of a graph."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import initializers, producers, set_nodes
from t2r_export.graph.weights import Weight
from t2r_export.quantizers.pairs import TokenPair
from t2r_runtime.contract.signature import LOGITS

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calibration:
    """Calibration data, and the float32 graph that reads it."""

    graph: Path
    tokens: Tokens  # (N,); empty for translators
    steps: int  # maximum steps per sequence; for translators, in total over all pairs
    pairs: Sequence[TokenPair] = ()  # for translators


# (model, config, calibration, weights) → model with the same inputs, outputs and dtypes. Initializers have inline data;
# with block-wise schemes they may refer to `weights` (t2r_export.graph.weights.refer).
Quantizer = Callable[[onnx.ModelProto, QuantizeConfig, Calibration | None, dict[str, Weight]], onnx.ModelProto]


@contextlib.contextmanager
def silence_ort() -> Iterator[None]:
    """Silence ONNX Runtime's quantizers; importing one of them also configures the root logger."""
    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers, level = root.handlers[:], root.level
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values; 4-bit values are packed in pairs."""
    count: int = math.prod(tensor.dims)
    if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        return math.ceil(count / 2)
    dtype: np.dtype[np.generic] = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return count * dtype.itemsize


def projections(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes that multiply by a weight matrix, including `head`.

    Unfolded feature maps are not included: they are batched products of small matrices, which no block-wise kernel
    supports. Routers of experts are not either: they are small, and a rounded score may choose another expert.
    """
    weights, scores = initializers(model), _router_scores(model)
    return [
        node
        for node in model.graph.node
        if node.op_type in ("Gemm", "MatMul") and _is_matrix(weights, node) and node.output[0] not in scores
    ]


def _router_scores(model: onnx.ModelProto) -> set[str]:
    """Tensors that choose experts: inputs of MoE, and of TopK except the logits."""
    made_by = producers(model)
    places = {"MoE": 1, "QMoE": 1, "TopK": 0}
    found = {node.input[places[node.op_type]] for node in model.graph.node if node.op_type in places} - {LOGITS}
    waiting = list(found)
    while waiting:  # walk back to the product
        node = made_by.get(waiting.pop())
        if node is not None and node.op_type in ("Softmax", "Sigmoid", "Add"):
            found.add(node.input[0])
            waiting.append(node.input[0])
    return found


def head(model: onnx.ModelProto) -> str | None:
    """Name of the projection to the vocabulary, found from its output; None for an encoder."""
    made_by, names = producers(model), {node.name for node in projections(model)}
    if LOGITS not in made_by:
        return None
    node = made_by[LOGITS]
    while node.name not in names:
        node = made_by[node.input[0]]
    return str(node.name)


def replace_node(
    model: onnx.ModelProto, node: onnx.NodeProto, others: Sequence[onnx.NodeProto], kept: dict[str, onnx.TensorProto]
) -> None:
    """Replace `node` by `others`, and keep the initializers of `kept` that are still used."""
    place = list(model.graph.node).index(node)
    nodes = [*model.graph.node[:place], *others, *model.graph.node[place + 1 :]]
    set_nodes(model.graph, nodes)
    replace_initializers(model, kept)


def single_node_model(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """A model of one node and its weights."""
    weights = initializers(model)
    known = {v.name: v for v in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    graph = helper.make_graph(
        [node],
        "single_node",
        [known[name] for name in node.input if name not in weights],
        [known[name] for name in node.output],
        [weights[name] for name in node.input if name in weights],
    )
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def gemm_to_matmul(model: onnx.ModelProto) -> None:
    """Replace the Gemm of every projection by MatMul and Add, as ONNX Runtime's quantizers require.

    The MatMul keeps the Gemm's name. A weight shared with the embedding table is copied.
    """
    weights = initializers(model)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "Gemm" or not _is_matrix(weights, node):
            nodes.append(node)
            continue
        x, name, *bias = node.input
        transposed = f"{name}.transposed"
        if transposed not in weights:
            array = np.ascontiguousarray(numpy_helper.to_array(weights[name]).T)  # (in, out)
            weights[transposed] = numpy_helper.from_array(array, transposed)
        product = f"{node.name}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [x, transposed], [product], name=node.name))
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], node.output, name=f"{node.name}.add"))
    set_nodes(model.graph, nodes)
    replace_initializers(model, weights)


def replace_initializers(model: onnx.ModelProto, weights: dict[str, onnx.TensorProto]) -> None:
    """Set the initializers to those of `weights` that a node uses. Existing ones stay in place, without a copy."""
    used = {name for node in model.graph.node for name in node.input}
    there = model.graph.initializer
    for i in reversed(range(len(there))):
        if there[i].name not in used or there[i].name not in weights:
            del there[i]
    present = initializers(model)
    there.extend(tensor for name, tensor in weights.items() if name in used and name not in present)


def _is_matrix(weights: dict[str, onnx.TensorProto], node: onnx.NodeProto) -> bool:
    return node.input[1] in weights and len(weights[node.input[1]].dims) == 2
