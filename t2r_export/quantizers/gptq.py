"""GPTQ: round weights with the second moments of their inputs (Frantar et al. 2023, arXiv 2210.17323, algorithm 1).

For a product y = x W, the inputs of a text give H = Σ xᵀx, and Σ |x (W - Q)|² = tr((W - Q)ᵀ H (W - Q)). Rows of W, one
per input channel, are rounded in order. The error of each is compensated in the rows that are not rounded yet, by the
Cholesky factor of H⁻¹. The format of MatMulNBits does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.weights import Weight
from t2r_export.quantizers.activations import projection_inputs
from t2r_export.quantizers.base import head, projections
from t2r_export.quantizers.blocks import block_sizes, packed, parts_of, stored_name
from t2r_export.quantizers.sensitivity import Passage

STEPS = 512  # tokens per text of a calibration
DAMPING = 0.01  # of the mean of H's diagonal, added to it
FACTORS = np.linspace(0.6, 1.1, 11)  # of the scale without clipping, from which each block chooses
ROWS = 512  # inputs that are multiplied at a time

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
    for graph, inputs in zip(bundle.halves, projection_inputs(bundle, passages), strict=True):
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
            found |= zip(parts_of(stored_name(products[0]), bits, config), rounded, strict=True)
    return found


def rounded_blocks(matrix: Floats, H: Doubles, bits: int, size: int, asymmetric: bool) -> list[np.ndarray]:
    """Round a matrix (in, out) with second moments H (in, in) of its inputs, in the format of `in_blocks`."""
    rows, columns = matrix.shape
    count = -(-rows // size)
    diagonal = np.diag(H)
    importance = diagonal + DAMPING * (diagonal.mean() or 1.0)
    factor = _factor(H + np.diag(importance - diagonal))
    rest = matrix.astype(np.float64)
    levels = np.zeros((count * size, columns), np.uint8)
    scales, middles = np.zeros((count, columns), np.float32), np.zeros((count, columns), np.uint8)
    for block, start in enumerate(range(0, rows, size)):
        end = min(start + size, rows)
        scale, middle = _grid(rest[start:end], importance[start:end], bits, asymmetric)
        errors = np.zeros((end - start, columns))
        for row in range(start, end):
            levels[row] = _nearest(rest[row], scale, middle, bits)
            errors[row - start] = (rest[row] - (levels[row].astype(np.float64) - middle) * scale) / factor[row, row]
            rest[row + 1 : end] -= np.outer(factor[row, row + 1 : end], errors[row - start])
        rest[end:] -= factor[start:end, end:].T @ errors
        levels[end : start + size] = middle  # padding is 0
        scales[block], middles[block] = scale, middle
    numbers = packed(np.ascontiguousarray(levels.T).reshape(columns, count, size), bits)
    made = [numbers, np.ascontiguousarray(scales.T)]
    return [*made, packed(np.ascontiguousarray(middles.T), bits)] if asymmetric else made


def _factor(H: Doubles) -> Doubles:
    """The upper triangular U with H⁻¹ = Uᵀ U."""
    lower = np.linalg.cholesky(np.linalg.inv(H))
    return np.ascontiguousarray(lower.T)


def _grid(block: Doubles, importance: Doubles, bits: int, asymmetric: bool) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """Scale and middle level of each column of a block (rows, columns): those of FACTORS with the least error.

    The error of a row counts by its `importance`. A symmetric block has the middle 2^(bits - 1), and its largest value
    without clipping has level 0, as ONNX Runtime rounds; so a scale may be negative.
    """
    top, columns = (1 << bits) - 1, block.shape[1]
    low, high = np.minimum(block.min(0), 0.0), np.maximum(block.max(0), 0.0)
    whole = (high - low) / top if asymmetric else -np.where(high > -low, high, low) / (1 << bits - 1)
    best, scales = np.full(columns, np.inf), np.zeros(columns, np.float32)
    middle = np.full(columns, 1 << bits - 1, np.uint8)
    if asymmetric:
        middle = np.rint(np.clip(-low / np.where(whole == 0, 1, whole), 0, top)).astype(np.uint8)
    for factor in FACTORS:
        scale = (whole * factor).astype(np.float32)
        values = (_nearest(block, scale, middle, bits).astype(np.float64) - middle) * scale
        error = (importance[:, None] * np.square(values - block)).sum(0)
        better = error < best
        best = np.where(better, error, best)
        scales = np.where(better, scale, scales)
    return scales, middle


def _nearest(values: Doubles, scale: Floats, middle: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """The nearest levels of values (…, columns)."""
    found = np.rint(values / np.where(scale == 0, 1, scale)) + middle
    return np.clip(found, 0, (1 << bits) - 1).astype(np.uint8)
