"""Bits and blocks product by product, under a budget of bytes: what costs least is rounded most.

Each product of the float32 graphs is rounded alone, in each of a few ways, and the graphs read a text: that is its cost
(t2r_export.quantizers.sensitivity). Costs are taken to add up, which `--check` then measures.
From the mildest rounding everywhere, the step with the least cost for each byte saved is taken until the budget holds;
bytes that are then left are spent on what gains most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import helper

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.bundle import Bundle
from t2r_export.quantizers.base import initializers, projections
from t2r_export.quantizers.blocks import BLOCK_SIZE, restored
from t2r_export.quantizers.sensitivity import Passage, Sensitivity
from t2r_export.quantizers.tables import table_of
from t2r_runtime.errors import UserError

Choice = tuple[int, int]  # bits, and weights that share a scale
CHOICES: tuple[Choice, ...] = ((8, 32), (4, 16), (4, 32), (4, 64), (4, 128))  # the mildest first
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


def choose(bundle: Bundle, config: QuantizeConfig, passages: Sequence[Passage]) -> dict[str, Choice]:
    """Bits and block size for the weight of each projection of a float32 bundle, by the weight's name.

    Args:
        passages: what the step graph, and a translator's encoder graph, read. config: with a budget.

    Raises:
        UserError: a budget that the smallest choices do not meet.
    """
    assert config.budget is not None
    left = config.budget - _others(bundle.halves, config)
    sensitivity = Sensitivity(bundle, passages)
    products = []
    for name, matrix in sensitivity.matrices.items():
        rounded = (restored(matrix, bits, block, config.asymmetric) for bits, block in CHOICES)
        products.append(Product(name, matrix.shape, tuple(sensitivity.cost(name, each) for each in rounded)))
    return {name: CHOICES[choice] for name, choice in fitted(products, left, config.budget).items()}


def fitted(products: list[Product], room: int, budget: int) -> dict[str, int]:
    """The number of each product's choice: from the mildest on, the least cost for each byte saved until all fit; then
    what a last large step saved too much is spent again, on the largest gain for each byte that still fits.

    Raises:
        UserError: more bytes than `room`, what the budget leaves for products, whatever is chosen.
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
    """All choices of another size than the present ones: the cost that a byte more saves (and a byte less adds), how
    many bytes more, and what is chosen."""
    for product in products:
        present = chosen[product.name]
        for choice, cost in enumerate(product.costs):
            grown = product.bytes(choice) - product.bytes(present)
            if grown:
                yield (product.costs[present] - cost) / grown, grown, product.name, choice


def _others(graphs: Sequence[onnx.ModelProto], config: QuantizeConfig) -> int:
    """Bytes of what is not a projection: a table of tokens in 8 bits or in blocks of 4, unless it is the head's; the
    rest in float32. What several graphs have counts once."""
    kept = {name: tensor for graph in graphs for name, tensor in initializers(graph).items()}
    products = set[str]()
    for graph in graphs:
        chosen = set(projections(graph))
        products |= {node.input[1] for node in graph.graph.node if node.name in chosen}
    tables = {table_of(graph).input[0] for graph in graphs}
    rest = [tensor for name, tensor in kept.items() if name not in products | tables]
    bytes_of_rest = [math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in rest]
    unshared = [kept[name].dims for name in tables if name not in products or config.embedding_bits is not None]
    return int(sum(_table_bytes(rows, width, config) for rows, width in unshared) + sum(bytes_of_rest))


def _table_bytes(rows: int, width: int, config: QuantizeConfig) -> int:
    if config.embedding_bits == 4:
        return stored((width, rows), 4, config.block_size or BLOCK_SIZE)
    return rows * width
