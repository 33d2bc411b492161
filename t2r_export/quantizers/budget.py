"""Choose bits and block size per weight under a budget of bytes.

The cost of a choice is measured by rounding one weight at a time (t2r_export.quantizers.sensitivity); costs are assumed
to add up. Starting from the finest choice for all weights, the change with the least cost per saved byte is applied
until the budget holds. Remaining bytes go to the changes with the largest gain per byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.nodes import initializers
from t2r_export.quantizers.base import projections, tensor_bytes
from t2r_export.quantizers.blocks import BLOCK_SIZE, in_blocks, in_halves, unrounded
from t2r_export.quantizers.experts import expert_nodes
from t2r_export.quantizers.sensitivity import Passage, Sensitivity
from t2r_export.quantizers.tables import table_of
from t2r_runtime.errors import UserError

Choice = tuple[int, int]  # bits, block size
CHOICES: tuple[Choice, ...] = ((8, 32), (4, 16), (4, 32), (4, 64), (4, 128))  # finest first
HALF, FLOAT = 2, 4  # bytes of a scale
ROW_BYTES = 256  # more than the constants of a graph take that looks tokens up in blocks (tables.row_of_blocks)


@dataclass(frozen=True)
class Product:
    """A weight (in, out) and the cost of each of CHOICES."""

    name: str
    shape: tuple[int, int]
    costs: tuple[float, ...]  # nats per token
    asymmetric: bool = False
    of_scale: int = HALF

    def bytes(self, choice: int) -> int:
        return stored(self.shape, *CHOICES[choice], self.asymmetric, self.of_scale)


def stored(shape: tuple[int, ...], bits: int, block: int, asymmetric: bool, of_scale: int = FLOAT) -> int:
    """Bytes of a matrix (in, out) in blocks along `in`, with a scale and, if `asymmetric`, a zero point per block."""
    blocks = -(-shape[0] // block)
    zero_points = -(-blocks * bits // 8) if asymmetric else 0
    return shape[1] * (blocks * (block * bits // 8 + of_scale) + zero_points)


def choose(bundle: Bundle, config: QuantizeConfig, passages: Sequence[Passage]) -> dict[str, Choice]:
    """Bits and block size per weight name for the projections of a float32 bundle.

    Args:
        config: a config with a budget.
        passages: text or pairs on which costs are measured.

    Raises:
        UserError: a budget below the size of the smallest choices.
    """
    assert config.budget is not None
    left = config.budget - _others(bundle.halves, config)
    sensitivity = Sensitivity(bundle, passages)
    products = []
    for name, matrix in sensitivity.graphs.matrices.items():
        costs, of_scale = [], HALF
        for bits, block in CHOICES:
            parts = in_halves(in_blocks(matrix, bits, block, config.asymmetric))
            costs.append(sensitivity.cost(name, unrounded(parts, bits, len(matrix))))
            of_scale = max(of_scale, parts[1].itemsize)
        products.append(Product(name, matrix.shape, tuple(costs), config.asymmetric, of_scale))
    return {name: CHOICES[choice] for name, choice in fitted(products, left, config.budget).items()}


def fitted(products: list[Product], room: int, budget: int) -> dict[str, int]:
    """Index in CHOICES per product, so that all fit into `room`, the part of the budget left for products.

    Raises:
        UserError: the smallest choices do not fit.
    """
    chosen = dict.fromkeys((product.name for product in products), 0)
    total = sum(product.bytes(0) for product in products)
    while total > room:
        steps = [step for step in _steps(products, chosen) if step[1] < 0]
        if not steps:
            raise UserError(
                f"a budget of at least {budget + total - room:,} bytes, the least that this graph's weights take",
                f"{budget:,}",
                "raise the budget",
            )
        _, grown, name, choice = min(steps)
        chosen[name], total = choice, total + grown
    while gains := [step for step in _steps(products, chosen) if 0 < step[1] <= room - total and step[0] > 0]:
        _, grown, name, choice = max(gains)
        chosen[name], total = choice, total + grown
    return chosen


def _steps(products: list[Product], chosen: dict[str, int]) -> Iterator[tuple[float, int, str, int]]:
    """Changes to choices of another size: cost reduction per added byte, added bytes, product, choice."""
    for product in products:
        present = chosen[product.name]
        for choice, cost in enumerate(product.costs):
            grown = product.bytes(choice) - product.bytes(present)
            if grown:
                yield (product.costs[present] - cost) / grown, grown, product.name, choice


def _others(graphs: Sequence[onnx.ModelProto], config: QuantizeConfig) -> int:
    """Bytes outside projections: untied embedding tables in 8 or 4 bits, experts in the scheme's bits, the rest in
    float32; shared tensors count once."""
    kept = {name: tensor for graph in graphs for name, tensor in initializers(graph).items()}
    products = {node.input[1] for graph in graphs for node in projections(graph)}
    tables = {table_of(graph).input[0] for graph in graphs}
    experts = {name for graph in graphs for _, names in expert_nodes(graph) for name in names}
    rest = [tensor for name, tensor in kept.items() if name not in products | tables | experts]
    unshared = [kept[name].dims for name in tables if name not in products or config.embedding_bits is not None]
    of_experts = sum(_expert_bytes(kept[name].dims, config) for name in experts)
    of_tables = sum(_table_bytes(rows, width, config) for rows, width in unshared) + ROW_BYTES * len(graphs)
    return of_tables + of_experts + sum(map(tensor_bytes, rest))


def _expert_bytes(dims: Sequence[int], config: QuantizeConfig) -> int:
    count, rows, columns = dims
    bits, size = config.bits, config.block_size or BLOCK_SIZE
    return stored((columns, count * rows), bits, size, config.asymmetric)


def _table_bytes(rows: int, width: int, config: QuantizeConfig) -> int:
    if config.embedding_bits == 4:
        return stored((width, rows), 4, config.block_size or BLOCK_SIZE, config.asymmetric)
    return rows * width
