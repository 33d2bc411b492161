"""Scales of activation channels for int8, whose products round a token's activations x (K,) by one range.

A few large channels leave the others few levels. x W = (x / s)(s W) is exact for any s (K,), so each product takes the
s = mean|x|^a / max|W|^(1 - a) with the least error of both roundings on a text: SmoothQuant (Xiao et al. 2022,
2211.10438), with the mean and search of AWQ (Lin et al. 2023, 2306.00978). Products of one activation share s.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from t2r_export.graph.bundle import Bundle
from t2r_export.graph.nodes import initializers, set_nodes
from t2r_export.graph.weights import Weight, array
from t2r_export.quantizers.activations import Floats, projection_inputs
from t2r_export.quantizers.base import projections
from t2r_export.quantizers.sensitivity import Passage

EXPONENTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ROWS = 256  # tokens in the search; all count in the errors
LEAST = 1e-5  # of a mean or a weight, relative to the largest
TURNED = ".transposed"  # name suffix of the weight of a Gemm that became a MatMul
CHANNELS = ".channels"  # name suffix of the scales (in,), float32, of a weight's input channels


def smooth(bundle: Bundle, passages: Sequence[Passage], weights: dict[str, Weight]) -> dict[str, float]:
    """Add scales of channels for the projections of a float32 bundle to `weights`; none for weights used twice.

    Returns the error of each product by rounding its scaled activations, by weight name (quantizers.activations).
    """
    errors = dict[str, float]()
    users = Counter(node.input[1] for graph in bundle.halves for node in projections(graph))
    for graph, inputs in zip(bundle.halves, projection_inputs(bundle, passages), strict=True):
        read = defaultdict[str, list[Floats]](list)
        for name, rows in inputs.rows:
            read[name].append(rows.copy())
        groups = dict[str, dict[str, None]]()
        for node in projections(graph):
            groups.setdefault(node.input[0], {})[node.input[1]] = None
        for activation, names in groups.items():
            x = np.concatenate(read.pop(activation))
            scales = np.ones(x.shape[1], np.float32)
            if all(users[name] == 1 for name in names):
                scales = best(x, np.concatenate([inputs.matrices[name] for name in names], axis=1))
                weights |= {name + CHANNELS: scales for name in names}
            for name in names:
                errors[name] = max(errors.get(name, 0.0), error(x, inputs.matrices[name], scales))
    return errors


def best(x: Floats, matrix: Floats) -> Floats:
    """The scales (in,) with the least error, mean over tokens relative to each, for activations (N, in)."""
    sizes = np.abs(x).mean(0), np.abs(matrix).max(1)
    means, largest = (np.maximum(size, LEAST * max(float(size.max()), LEAST)) for size in sizes)
    made = [np.ones_like(means), *(means**a / largest ** (1 - a) for a in EXPONENTS)]
    some = x[:: -(-len(x) // ROWS)]
    exact = some @ matrix
    least = np.finfo(np.float32).tiny
    errors = []
    for scales in made:
        scaled = matrix * scales[:, None]
        steps = np.maximum(np.abs(scaled).max(0), least) / 127  # one per column
        found = rounded_rows(some / scales) @ (np.rint(scaled / steps) * steps)
        errors.append(float((np.square(found - exact).sum(-1) / np.maximum(np.square(exact).sum(-1), least)).mean()))
    chosen: Floats = made[int(np.argmin(errors))]
    return chosen


def error(x: Floats, matrix: Floats, scales: Floats) -> float:
    """The largest |(Q(x / s) s - x)W| of activations (N, in), relative to the root mean square of |xW|."""
    errors = np.linalg.norm((rounded_rows(x / scales) * scales - x) @ matrix, axis=-1)
    typical = float(np.square(x @ matrix, dtype=np.float64).sum(-1).mean()) ** 0.5
    return float(errors.max(initial=0.0)) / typical if typical else 0.0


def rounded_rows(x: Floats) -> Floats:
    """Rows (N, in) as DynamicQuantizeLinear rounds each of them alone: to uint8, by a range that includes 0."""
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    steps = np.where(high > low, (high - low) / 255, 1).astype(np.float32)
    middle = np.rint(-low / steps)
    made: Floats = (np.clip(np.rint(x / steps) + middle, 0, 255) - middle) * steps
    return made


def scale_channels(model: onnx.ModelProto, products: Sequence[onnx.NodeProto], weights: Mapping[str, Weight]) -> None:
    """Scale the weights (in, out) of MatMul nodes, and divide their activations, by the scales of `smooth`."""
    kept, nodes, divided = initializers(model), list[onnx.NodeProto](), dict[str, str]()
    chosen = {node.name for node in products}
    for node in model.graph.node:
        name = node.input[1].removesuffix(TURNED) + CHANNELS if node.name in chosen else ""
        if name in weights:
            x, scales, weight = node.input[0], array(weights[name]), kept[node.input[1]]
            if x not in divided:
                divided[x], factors = f"{x}.scaled", f"{x}.factors"
                model.graph.initializer.append(numpy_helper.from_array(1 / scales, factors))
                nodes.append(helper.make_node("Mul", [x, factors], [divided[x]], divided[x]))
            node.input[0] = divided[x]
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * scales[:, None], weight.name))
        nodes.append(node)
    set_nodes(model.graph, nodes)
