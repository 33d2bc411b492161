"""GPTQ: round weights with the second moments of their inputs (Frantar et al. 2023, arXiv 2210.17323).

For a product y = x W, the inputs of a text give H = Σ xᵀx, and Σ |x (W - Q)|² = tr((W - Q)ᵀ H (W - Q)). Rows of W, one
per input channel, are rounded in order. The errors of the previous rows are compensated in each, by the factor of H
that needs no inverse (LDLQ of Chee et al. 2023, arXiv 2307.13304, whose theorem 6 says that this is GPTQ). The format
of MatMulNBits does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.weights import Weight
from t2r_export.quantizers.activations import projection_inputs
from t2r_export.quantizers.base import head, projections
from t2r_export.quantizers.blocks import block_sizes, in_halves, packed, parts_of, rounded_scales, stored_name
from t2r_export.quantizers.sensitivity import Passage
from t2r_runtime.contract.signature import PREFILL

STEPS = 512  # tokens per text of a calibration
DAMPING = 0.01  # of the mean of H's diagonal, added to it
FACTORS = np.linspace(0.6, 1.1, 11, dtype=np.float32)  # of the scale without clipping, from which each block chooses
ROWS = 512  # inputs that are read and multiplied at a time

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass
class Moments:
    """Second moments of inputs (N, in), which are read in parts."""

    size: int
    waiting: list[Floats] = field(default_factory=list)
    total: Doubles | None = None  # (in, in)

    def read(self, x: Floats) -> None:
        """Add inputs."""
        self.waiting.append(x)
        if sum(map(len, self.waiting)) >= ROWS:
            self._add()

    def sum(self) -> Doubles:
        """H, (in, in)."""
        self._add()
        assert self.total is not None
        return self.total

    def _add(self) -> None:
        if self.total is None:
            self.total = np.zeros((self.size, self.size))
        if self.waiting:
            x = np.concatenate(self.waiting)
            self.total += x.T @ x
            self.waiting = []


def gptq(bundle: Bundle, passages: Sequence[Passage], config: QuantizeConfig) -> dict[str, Weight]:
    """Rounded weights of the projections of a float32 bundle, by the names that `blocks` gives them.

    The output head, which has more bits, and the matrices of experts are not among them: `blocks` rounds them.

    Args:
        passages: texts or pairs whose inputs are measured in the float32 graphs.
    """
    found: dict[str, Weight] = {}
    bundle, tokens = reader(bundle, passages)
    for graph, inputs in zip(bundle.halves, projection_inputs(bundle, passages, tokens), strict=True):
        sizes, last = block_sizes(graph, config), head(graph)
        nodes = [node for node in projections(graph) if node.name != last]
        moments = {node.input[0]: Moments(len(inputs.matrices[node.input[1]])) for node in nodes}
        for name, x in inputs.rows:
            if name in moments:
                moments[name].read(x)
        users = dict[str, list[onnx.NodeProto]]()
        for node in nodes:
            users.setdefault(node.input[1], []).append(node)
        for name, products in users.items():
            bits, size = sizes[products[0].name]
            H = np.sum([moments[activation].sum() for activation in {node.input[0] for node in products}], axis=0)
            rounded = rounded_blocks(inputs.matrices[name], H, bits, size, config.asymmetric)
            found |= zip(parts_of(stored_name(products[0]), bits, config), in_halves(rounded), strict=True)
    return found


def reader(bundle: Bundle, passages: Sequence[Passage]) -> tuple[Bundle, int | None]:
    """The bundle that reads passages, and its tokens of a row per run: with a prefill graph as its step graph if it can
    be, which takes a fraction of a step's time per token; else None, for steps.
    """
    prompt = bundle.companions.get(PREFILL)
    if prompt is None or _weights(prompt) != _weights(bundle.step):  # the prefill graph of an LSTM has other products
        return bundle, None
    return replace(bundle, step=prompt), max(1, ROWS // max(len(passage.ids) for passage in passages))


def _weights(graph: onnx.ModelProto) -> set[str]:
    """Weights of projections."""
    return {node.input[1] for node in projections(graph)}


def rounded_blocks(matrix: Floats, H: Doubles, bits: int, size: int, asymmetric: bool) -> list[np.ndarray]:
    """Round a matrix (in, out) with second moments H (in, in) of its inputs, in the format of `in_blocks`."""
    rows, columns = matrix.shape
    count = -(-rows // size)
    diagonal = np.diag(H)
    importance = diagonal + DAMPING * (diagonal.mean() or 1.0)
    factor = _factor(H + np.diag(importance - diagonal))
    relative = (importance / importance.max()).astype(np.float32)
    levels, errors = np.zeros((count * size, columns), np.uint8), np.zeros((rows, columns), np.float32)
    scales, middles = np.zeros((2, count, columns), np.float32)
    for block, start in enumerate(range(0, rows, size)):
        end = min(start + size, rows)
        carried = factor[start:end, :start] @ errors[:start]
        # the values that rows of the block would have if those before them were not rounded
        likely = matrix[start:end] + np.linalg.solve(factor[start:end, start:end], carried)
        scale, middle = _grid(likely, relative[start:end], bits, asymmetric)
        for row in range(start, end):
            wanted = matrix[row] + carried[row - start] + factor[row, start:row] @ errors[start:row]
            near = _nearest(wanted, scale, middle, bits)
            levels[row] = near + middle
            errors[row] = matrix[row] - near * scale
        levels[end : start + size] = middle  # padding is 0
        scales[block], middles[block] = scale, middle
    numbers = packed(np.ascontiguousarray(levels.T).reshape(columns, count, size), bits)
    made = [numbers, np.ascontiguousarray(scales.T)]
    return [*made, packed(np.ascontiguousarray(middles.T.astype(np.uint8)), bits)] if asymmetric else made


def _factor(H: Doubles) -> Floats:
    """The lower triangular L, with ones on the diagonal, of H = Lᵀ D L: row i has the weights of earlier errors."""
    factor = np.linalg.cholesky(H[::-1, ::-1])[::-1, ::-1].T
    return np.ascontiguousarray(factor / np.diag(factor)[:, None], np.float32)


def _grid(block: Floats, importance: Floats, bits: int, asymmetric: bool) -> tuple[Floats, Floats]:
    """Scale and middle level of each column of a block (rows, columns): those of FACTORS with the least error.

    The error of a row counts by its `importance`. A symmetric block has the middle 2^(bits - 1), and its largest value
    without clipping has level 0, as ONNX Runtime rounds; so a scale may be negative.
    """
    top, columns = (1 << bits) - 1, block.shape[1]
    low, high = np.minimum(block.min(0), 0.0), np.maximum(block.max(0), 0.0)
    whole = (high - low) / top if asymmetric else -np.where(high > -low, high, low) / (1 << bits - 1)
    best, scales = np.full(columns, np.inf, np.float32), np.zeros(columns, np.float32)
    middle = np.full(columns, 1 << bits - 1, np.float32)
    if asymmetric:
        middle = np.rint(np.clip(-low / np.where(whole == 0, 1, whole), 0, top))
    for factor in FACTORS:
        scale = rounded_scales(whole * factor)
        found = _nearest(block, scale, middle, bits)
        found *= scale
        found -= block
        error = importance @ np.square(found, out=found)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, scale, scales)
    return scales, middle


def _nearest(values: Floats, scale: Floats, middle: Floats, bits: int) -> Floats:
    """The nearest levels of values (…, columns), less the middle level."""
    found: Floats = (values / np.where(scale == 0, 1, scale)).astype(np.float32, copy=False)
    np.rint(found, out=found)
    return np.clip(found, -middle, (1 << bits) - 1 - middle, out=found)
