"""Bits and blocks product by product, under a budget of bytes: what costs least is rounded most.

Each product of the float32 graph is rounded alone, in each of a few ways, and the graph reads a text: its cost is
KL(float32 ‖ rounded) of the next token, a mean over tokens. Costs are taken to add up, which `--check` then measures.
From the mildest rounding everywhere, the step with the least cost for each byte saved is taken until the budget holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.weights import Weight, fill, values
from t2r_export.quantizers.base import Tokens, initializers, projections
from t2r_export.quantizers.blocks import BLOCK_SIZE, restored
from t2r_export.quantizers.tables import table_of
from t2r_export.training.data import parallel_sequences
from t2r_runtime.errors import UserError
from t2r_runtime.signature import INPUT_IDS, LOGITS, Signature

Choice = tuple[int, int]  # bits, and weights that share a scale
CHOICES: tuple[Choice, ...] = ((8, 32), (4, 16), (4, 32), (4, 64), (4, 128))  # the mildest first
ROWS, STEPS = 16, 64  # texts that are read side by side, and tokens of each
SCALE_BYTES = 4


@dataclass(frozen=True)
class Product:
    """The weight of a projection (in, out), and what each of `CHOICES` costs."""

    name: str
    shape: tuple[int, int]
    costs: tuple[float, ...]  # nats

    def bytes(self, choice: int) -> int:
        return stored(self.shape, *CHOICES[choice])


def stored(shape: tuple[int, ...], bits: int, block: int) -> int:
    """Bytes of a matrix (in, out) in blocks along `in`, with their scales; zero points are not counted."""
    blocks = -(-shape[0] // block)
    return shape[1] * blocks * (block * bits // 8 + SCALE_BYTES)


def choose(
    model: onnx.ModelProto,
    signature: Signature,
    weights: Mapping[str, Weight],
    config: QuantizeConfig,
    tokens: Tokens,
) -> dict[str, Choice]:
    """Bits and block size for the weight of each projection of a float32 step graph, by the weight's name.

    Args:
        weights: what the graph's initializers name. tokens: (N,), the text. config: with a budget.

    Raises:
        UserError: a budget that the smallest choices do not meet.
    """
    assert config.budget is not None
    left = config.budget - _others(model, config)
    measure = Measure(model, signature, weights, tokens)
    products = []
    for name, matrix in measure.matrices.items():
        costs = tuple(measure.cost(name, restored(matrix, bits, block, config.asymmetric)) for bits, block in CHOICES)
        products.append(Product(name, matrix.shape, costs))
    return {name: CHOICES[choice] for name, choice in fitted(products, left, config.budget).items()}


def fitted(products: list[Product], room: int, budget: int) -> dict[str, int]:
    """The number of each product's choice: from the mildest on, the least cost for each byte saved.

    Raises:
        UserError: more bytes than `room`, what the budget leaves for products, whatever is chosen.
    """
    chosen = dict.fromkeys((product.name for product in products), 0)
    total = sum(product.bytes(0) for product in products)
    while total > room:
        steps = [step for product in products for step in _steps(product, chosen[product.name])]
        if not steps:
            raise UserError(
                f"a budget of at least {budget + total - room:,} bytes, the least that this graph's weights take",
                f"{budget:,}",
                "raise --budget",
            )
        _, saved, name, choice = min(steps)
        chosen[name], total = choice, total - saved
    return chosen


def _steps(product: Product, present: int) -> Iterator[tuple[float, int, str, int]]:
    """Choices that take fewer bytes than the present one: cost for a byte, bytes saved, and what it is."""
    for choice in range(len(CHOICES)):
        saved = product.bytes(present) - product.bytes(choice)
        if saved > 0:
            yield (product.costs[choice] - product.costs[present]) / saved, saved, product.name, choice


class Measure:
    """The float32 graph with the weights of its projections as inputs, and a text that it has read."""

    def __init__(
        self, model: onnx.ModelProto, signature: Signature, weights: Mapping[str, Weight], tokens: Tokens
    ) -> None:
        self.signature = signature
        self.rows = signature.batch or ROWS
        steps = min(STEPS, signature.max_positions or STEPS, len(tokens) // self.rows)
        if steps < 1:
            raise UserError(f"a text of at least {self.rows} tokens", f"{len(tokens)}", "name a longer one")
        self.text = parallel_sequences(tokens, self.rows, steps)
        self.matrices: dict[str, np.ndarray] = {}
        self.session = self._opened(model, weights)
        self.expected = list(self._read({}))

    def cost(self, name: str, matrix: np.ndarray) -> float:
        """KL in nats a token where that weight is `matrix` (in, out)."""
        total = 0.0
        for before, after in zip(self.expected, self._read({name: matrix}), strict=True):
            total += float((np.exp(before) * (before - after)).sum())
        return total / self.text.size

    def _read(self, changed: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
        """Log-probabilities (rows, vocabulary) behind each token of the texts."""
        feeds = {name: changed.get(name, matrix) for name, matrix in self.matrices.items()}
        feeds = {name: np.ascontiguousarray(m.T if name in self.turned else m) for name, m in feeds.items()}
        specs = self.signature.states
        states = {s.past: np.full(s.dims(self.rows), s.initial, s.dtype) for s in specs}
        chained = {s.past: s.present for s in specs if not s.constant}
        names = [output.name for output in self.session.get_outputs()]
        for ids in self.text.T:
            found = dict(zip(names, self.session.run(None, {**feeds, **states, INPUT_IDS: ids}), strict=True))
            logits = found[LOGITS].astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            yield logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            states |= {past: found[present] for past, present in chained.items()}

    def _opened(self, model: onnx.ModelProto, weights: Mapping[str, Weight]) -> ort.InferenceSession:
        made, kept = onnx.ModelProto(), initializers(model)
        made.CopyFrom(model)
        chosen = set(projections(model))
        nodes = [node for node in model.graph.node if node.name in chosen]
        # (out, in), where a MatMul has (in, out)
        self.turned = {node.input[1] for node in nodes if node.op_type == "Gemm"}
        for node in nodes:
            name = node.input[1]
            matrix = values(kept[name], weights)
            self.matrices[name] = matrix.T if name in self.turned else matrix
        del made.graph.initializer[:]
        made.graph.initializer.extend(t for name, t in kept.items() if name not in self.matrices)
        fill(made, weights)
        made.graph.input.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(kept[name].dims)) for name in self.matrices
        )
        options = ort.SessionOptions()
        options.log_severity_level = 4
        return ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _others(model: onnx.ModelProto, config: QuantizeConfig) -> int:
    """Bytes of what is not a projection: a table of tokens in 8 bits or in blocks of 4, unless it is the head's; the
    rest in float32."""
    kept, chosen = initializers(model), set(projections(model))
    products = {node.input[1] for node in model.graph.node if node.name in chosen}
    name = table_of(model).input[0]
    rows, width = kept[name].dims
    table = stored((width, rows), 4, config.block_size or BLOCK_SIZE) if config.embedding_bits == 4 else rows * width
    if name in products and config.embedding_bits is None:
        table = 0
    rest = [tensor for other, tensor in kept.items() if other not in products and other != name]
    bytes_of_rest = [math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in rest]
    return int(table + sum(bytes_of_rest))
