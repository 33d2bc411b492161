"""What the schemes share: their form, and the step graph seen as projections and what lies between them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import set_nodes
from t2r_export.graph.weights import Weight
from t2r_export.quantizers.pairs import TokenPair
from t2r_runtime.contract.signature import LOGITS

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Calibration:
    """Text for a scheme that measures activations, and the float32 graph to read it with."""

    graph: Path
    tokens: Tokens  # (N,); of a translator, none
    steps: int  # of each sequence, as far as the text and the model's positions go; of all pairs together
    pairs: Sequence[TokenPair] = ()  # of a translator


# (model, config, calibration, weights) -> model: a float32 step graph becomes one with the same inputs and outputs,
# names and dtypes. Its weights are inside it, but for those that the initializers of a block-wise scheme's graph name,
# before and after (see t2r_export.graph.weights.refer).
Quantizer = Callable[[onnx.ModelProto, QuantizeConfig, Calibration | None, dict[str, Weight]], onnx.ModelProto]


@contextlib.contextmanager
def silence_ort() -> Iterator[None]:
    """Keep ONNX Runtime's quantizers from printing; one of them also sets up the root logger when it is imported."""
    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers, level = root.handlers[:], root.level
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)


def initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def projections(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes that multiply by a weight matrix, `head` among them: what holds nearly all of the bytes.

    The feature maps of a model that could not be folded are batched products of small matrices, one a head; no
    block-wise kernel takes them, and they are not listed.
    """
    weights = initializers(model)
    return [node.name for node in model.graph.node if node.op_type in ("Gemm", "MatMul") and _is_matrix(weights, node)]


def head(model: onnx.ModelProto) -> str | None:
    """Name of the projection onto the vocabulary. A tied one is named for the embedding, so its output tells. None: an
    encoder, which has none."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    if LOGITS not in made_by:
        return None
    node = made_by[LOGITS]
    while node.name not in projections(model):
        node = made_by[node.input[0]]
    return str(node.name)


def replace_node(
    model: onnx.ModelProto, node: onnx.NodeProto, others: Sequence[onnx.NodeProto], kept: dict[str, onnx.TensorProto]
) -> None:
    """Put `others` where `node` stands, and keep of the initializers `kept` those that are used then."""
    place = list(model.graph.node).index(node)
    nodes = [*model.graph.node[:place], *others, *model.graph.node[place + 1 :]]
    set_nodes(model.graph, nodes)
    replace_initializers(model, kept)


def single_node_model(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ModelProto:
    """A model of one node, with the weights that it reads."""
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
    """Write every Gemm of a projection as MatMul and Add: the one form that ONNX Runtime's quantizers take.

    The MatMul keeps the Gemm's name. A weight that a table shares (a tied head) is copied, so the table stays.
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
    """Keep of `weights` those that a node uses. What the model has of them stays where it is: no bytes are copied."""
    used = {name for node in model.graph.node for name in node.input}
    there = model.graph.initializer
    for i in reversed(range(len(there))):
        if there[i].name not in used or there[i].name not in weights:
            del there[i]
    present = initializers(model)
    there.extend(tensor for name, tensor in weights.items() if name in used and name not in present)


def _is_matrix(weights: dict[str, onnx.TensorProto], node: onnx.NodeProto) -> bool:
    return node.input[1] in weights and len(weights[node.input[1]].dims) == 2
