"""keep: weights that were quantized before stay in their blocks, and others are rounded.

Rows of a weight are compared with all formats (t2r_export.quantizers.grids). A product of several weights, such as q, k
and v, is divided into runs of rows with one format each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx

from t2r_export.config.quantize import QuantizeConfig, Run
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.nodes import initializers
from t2r_export.graph.weights import Weight, values
from t2r_export.quantizers.base import projections
from t2r_export.quantizers.blocks import BLOCK_SIZE
from t2r_export.quantizers.grids import FORMS, Flags, Floats, Form, fitting
from t2r_export.quantizers.tables import OWN, has_table, table_of
from t2r_runtime.errors import UserError

MOST_RUNS = 8  # of a weight; with more, the product is rounded
RUN_BYTES = 1 << 12  # that a further run must save, since it is a further product


def kept(bundle: Bundle, config: QuantizeConfig) -> dict[str, tuple[Run, ...]]:
    """The runs of the weights of a float32 bundle, by name: those of products, and of an embedding table that is kept.

    Raises:
        UserError: no weight is in blocks.
    """
    found: dict[str, tuple[Run, ...]] = {}
    for graph in bundle.graphs:
        for name, matrix in _matrices(graph, bundle.weights, found):
            found[name] = runs(matrix, config)
        table = table_of(graph).input[0] if has_table(graph) else OWN
        if table not in found and not table.endswith(OWN):  # a table that its target wants apart has one scale
            rows = runs(values(initializers(graph)[table], bundle.weights), config)
            if len(rows) == 1 and rows[0].kept:
                found[table] = rows
    if not any(run.kept for each in found.values() for run in each):
        do = "use w8 or w4, or export the quantized file, or an .adapter of it, with --quantize keep"
        raise UserError(
            "weights in blocks of 4 or 8 bits, to keep them", "none: every weight was changed or is float", do
        )
    return found


def _matrices(
    graph: onnx.ModelProto, weights: Mapping[str, Weight], known: Mapping[str, object]
) -> Iterator[tuple[str, Floats]]:
    """Weights (out, in) of a graph's products, by name."""
    there = initializers(graph)
    for node in projections(graph):
        if node.input[1] not in known:
            matrix = values(there[node.input[1]], weights)
            yield node.input[1], np.ascontiguousarray(matrix.T) if node.op_type == "MatMul" else matrix


def runs(matrix: Floats, config: QuantizeConfig) -> tuple[Run, ...]:
    """The runs of a weight (out, in) that take the fewest bytes. Rows that no format holds are rounded.

    Everything is rounded if there would be many runs.
    """
    rows, width = matrix.shape
    fits = fitting(matrix)
    rounded: Flags = ~np.logical_or.reduce(fits, 0, keepdims=True) | ~matrix.any(1)  # zeros are in every format
    forms = [*(Run(1, form.bits, form.size, form.offset) for form in FORMS), _rounded(1, config)]
    costs = np.array([Form(run.bits, run.size, run.offset).bytes(width) for run in forms])
    found = [forms[form]._replace(rows=count) for form, count in _segments(np.concatenate([fits, rounded]), costs)]
    return tuple(found) if len(found) <= MOST_RUNS else (_rounded(rows, config),)


def _segments(fits: Flags, costs: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Forms and row counts of the runs of least cost, by the Viterbi algorithm over rows that fit the same forms.

    Args:
        fits: whether each row fits each form, (forms, rows). costs: bytes of a row in each form, (forms).
    """
    starts = np.flatnonzero(np.r_[True, (fits[:, 1:] != fits[:, :-1]).any(0)])
    counts = np.diff(np.r_[starts, fits.shape[1]])
    total, before = np.zeros(len(costs)), []
    for start, count in zip(starts, counts, strict=True):
        best = int(total.argmin())
        stays = total <= total[best] + RUN_BYTES
        before.append(np.where(stays, np.arange(len(costs)), best))
        total = np.where(stays, total, total[best] + RUN_BYTES) + np.where(fits[:, start], count * costs, np.inf)
    form, found = int(total.argmin()), list[tuple[int, int]]()
    for count, previous in zip(counts[::-1], before[::-1], strict=True):
        if found and found[-1][0] == form:
            found[-1] = (form, found[-1][1] + int(count))
        else:
            found.append((form, int(count)))
        form = int(previous[form])
    return found[::-1]


def _rounded(rows: int, config: QuantizeConfig) -> Run:
    return Run(rows, config.other_bits, BLOCK_SIZE, kept=False)
