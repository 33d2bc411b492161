"""Inputs of projections on a text, and products whose inputs lose too much accuracy in int8.

At accuracy level 4, ONNX Runtime's MatMulNBits rounds each block of an activation x (K,) to int8 with one scale, its
largest magnitude over 127. A channel far above the others of its block leaves them few levels: "massive activations"
(Sun et al. 2024, 2402.17762), which change greedy tokens of some models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.bundle import Bundle
from t2r_export.quantizers.base import head, projections
from t2r_export.quantizers.blocks import BLOCK_SIZE
from t2r_export.quantizers.sensitivity import OpenBundle, Passage
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

    def read(self, x: Floats) -> None:
        """Measure activations (N, in)."""
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
    errors = dict[str, float]()
    for graph, inputs in zip(bundle.halves, projection_inputs(bundle, passages), strict=True):
        products = list(_products(graph, inputs.matrices, config))
        for activation, x in inputs.rows:
            for product in products:
                if product.activation == activation:
                    product.read(x)
        for product in products:
            errors[product.weight] = max(errors.get(product.weight, 0.0), product.error)
    return errors


@dataclass(frozen=True)
class Inputs:
    """Inputs of the projections of a float32 graph.

    Attributes:
        matrices: weights (in, out), by name.
        rows: name and values (N, in) of each input, again and again until the passages end.
    """

    matrices: Mapping[str, Floats]
    rows: Iterator[tuple[str, Floats]]


def projection_inputs(bundle: Bundle, passages: Sequence[Passage], tokens: int | None = None) -> list[Inputs]:
    """Inputs of the projections of each of `bundle.halves`, computed while they are read. Padding is not among them.

    Args:
        tokens: as of `OpenBundle`; without the head, which reads the last token of a run.
    """
    graphs = OpenBundle(_with_activations(bundle), passages, tokens)
    names = _inputs(bundle.step, without=None if tokens is None else head(bundle.step))
    found = [Inputs(graphs.step.matrices, _of_steps(graphs, names))]
    if graphs.encoder is not None:
        found.append(Inputs(graphs.encoder.matrices, _of_encoder(graphs, _inputs(bundle.halves[1]))))
    return found


def _of_steps(graphs: OpenBundle, names: Sequence[str]) -> Iterator[tuple[str, Floats]]:
    for rows, found in graphs.steps({}):
        for name in names:
            x = found[name]
            if not rows.all():
                x = x.reshape(rows.size, -1, x.shape[-1])[rows.ravel()]
            yield name, _flat(x)


def _of_encoder(graphs: OpenBundle, names: Sequence[str]) -> Iterator[tuple[str, Floats]]:
    for passage, encoded in zip(graphs.passages, graphs.encoded, strict=True):
        for name in names:
            yield name, _flat(_of_sources(encoded[name], passage))


def _flat(x: npt.NDArray[np.generic]) -> Floats:
    """Activations (…, in) as rows."""
    return x.reshape(-1, x.shape[-1]).astype(np.float32, copy=False)


def rounded(x: Floats, block: int) -> Floats:
    """Rows (N, in), float32, as MatMulNBits rounds them at accuracy level 4: int8 with one scale per block."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % block)))
    blocks = padded.reshape(len(x), -1, block)
    scales = np.abs(blocks).max(-1, keepdims=True) / LEVELS
    levels = np.rint(blocks / np.where(scales > 0, scales, 1))
    made: Floats = (levels * scales).reshape(padded.shape)[:, : x.shape[1]].astype(np.float32)
    return made


def _products(graph: onnx.ModelProto, matrices: Mapping[str, Floats], config: QuantizeConfig) -> Iterator[Product]:
    size = config.block_size or BLOCK_SIZE
    for node in projections(graph):
        x, name = node.input[:2]
        yield Product(name, x, matrices[name], config.choices.get(name, (0, size))[1])


def _with_activations(bundle: Bundle) -> Bundle:
    """The bundle with the activations of projections as additional outputs of step and encoder graph."""
    companions = {role: _observed(graph) if role == ENCODER else graph for role, graph in bundle.companions.items()}
    return replace(bundle, step=_observed(bundle.step), companions=companions)


def _observed(graph: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(graph)
    there = {each.name for each in made.graph.output}
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in _inputs(graph) if name not in there)
    return made


def _inputs(graph: onnx.ModelProto, without: str | None = None) -> list[str]:
    """Names of the inputs of projections. Args: without: name of a projection to leave out."""
    return list(dict.fromkeys(node.input[0] for node in projections(graph) if node.name != without))


def _of_sources(x: npt.NDArray[np.generic], passage: Passage) -> npt.NDArray[np.generic]:
    """Activations of the sources' tokens; padding is removed from activations (B, S, in)."""
    lengths = np.array([len(source) for source in passage.sources])
    if x.ndim == 3 and len(x) == len(lengths):
        x = x[np.arange(x.shape[1]) < lengths[:, None]]
    return x
