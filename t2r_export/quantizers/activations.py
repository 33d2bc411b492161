"""Find products whose activations lose too much accuracy in int8.

At accuracy level 4, ONNX Runtime's MatMulNBits rounds each block of an activation x (K,) to int8 with one scale, its
largest magnitude over 127. A channel far above the others of its block leaves them few levels: "massive activations"
(Sun et al. 2024, 2402.17762), which change greedy tokens of some models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.bundle import Bundle
from t2r_export.quantizers.base import projections
from t2r_export.quantizers.blocks import BLOCK_SIZE
from t2r_export.quantizers.sensitivity import OpenBundle, OpenGraph, Passage
from t2r_runtime.contract.signature import ENCODER

LEVELS = 127  # of int8, on each side of 0
Floats = npt.NDArray[np.float32]


@dataclass
class Product:
    """A product with a weight, and its measurements."""

    weight: str
    activation: str
    matrix: Floats  # (in, out)
    block: int
    worst: float = 0.0  # largest norm of a row's error
    squares: float = 0.0  # sum of squared norms of rows
    rows: int = 0

    def read(self, activations: npt.NDArray[np.generic]) -> None:
        """Measure activations (…, in)."""
        x = activations.reshape(-1, activations.shape[-1]).astype(np.float32, copy=False)
        exact, errors = x @ self.matrix, (rounded(x, self.block) - x) @ self.matrix
        self.worst = max(self.worst, float(np.linalg.norm(errors, axis=-1).max(initial=0.0)))
        self.squares += float(np.square(exact, dtype=np.float64).sum())
        self.rows += len(x)

    @property
    def error(self) -> float:
        """The largest error of a row, relative to the root mean square of all rows' norms."""
        typical = (self.squares / max(self.rows, 1)) ** 0.5
        return self.worst / typical if typical else 0.0


def activation_errors(bundle: Bundle, passages: Sequence[Passage], config: QuantizeConfig) -> dict[str, float]:
    """Error of each projection of a float32 bundle due to rounding its activations alone, keyed by weight name.

    An error is the largest |(Q(x) - x)W| of any token, relative to the root mean square of |xW|: one token with a
    massive activation counts, since a state or a cache keeps it. If a weight has several products, their largest error
    counts.
    """
    graphs = OpenBundle(_with_activations(bundle), passages)
    steps = list(_products(bundle.step, graphs.step, config))
    for rows, found in graphs.steps({}):
        for product in steps:
            product.read(found[product.activation][rows])
    sources = [] if graphs.encoder is None else list(_products(bundle.halves[1], graphs.encoder, config))
    for passage, encoded in zip(passages, graphs.encoded, strict=True):
        for product in sources:
            product.read(_of_sources(encoded[product.activation], passage))
    errors = dict[str, float]()
    for product in (*steps, *sources):
        errors[product.weight] = max(errors.get(product.weight, 0.0), product.error)
    return errors


def rounded(x: Floats, block: int) -> Floats:
    """Rows (N, in), float32, as MatMulNBits rounds them at accuracy level 4: int8 with one scale per block."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % block)))
    blocks = padded.reshape(len(x), -1, block)
    scales = np.abs(blocks).max(-1, keepdims=True) / LEVELS
    levels = np.rint(blocks / np.where(scales > 0, scales, 1))
    made: Floats = (levels * scales).reshape(padded.shape)[:, : x.shape[1]].astype(np.float32)
    return made


def _products(graph: onnx.ModelProto, opened: OpenGraph, config: QuantizeConfig) -> Iterator[Product]:
    chosen, size = set(projections(graph)), config.block_size or BLOCK_SIZE
    for node in graph.graph.node:
        if node.name in chosen:
            x, name = node.input[:2]
            yield Product(name, x, opened.matrices[name], config.choices.get(name, (0, size))[1])


def _with_activations(bundle: Bundle) -> Bundle:
    """The bundle with the activations of projections as additional outputs of step and encoder graph."""
    companions = {role: _observed(graph) if role == ENCODER else graph for role, graph in bundle.companions.items()}
    return replace(bundle, step=_observed(bundle.step), companions=companions)


def _observed(graph: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(graph)
    chosen, there = set(projections(made)), {each.name for each in made.graph.output}
    names = dict.fromkeys(node.input[0] for node in made.graph.node if node.name in chosen)
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    return made


def _of_sources(x: npt.NDArray[np.generic], passage: Passage) -> npt.NDArray[np.generic]:
    """Activations of the sources' tokens; padding is removed from activations (B, S, in)."""
    lengths = np.array([len(source) for source in passage.sources])
    if x.ndim == 3 and len(x) == len(lengths):
        x = x[np.arange(x.shape[1]) < lengths[:, None]]
    return x
