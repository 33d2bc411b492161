"""Storage transforms: each has an inverse, works on shapes alone, and returns weights with their own storage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import small
from t2r_export.checkpoints.importers.sources import (
    CONVOLUTION,
    ONE_PLUS,
    PLAIN,
    ROW,
    TRANSPOSED,
    Source,
    Transform,
    in_heads,
    named,
    permuted,
    place,
    skipped,
)
from t2r_export.checkpoints.importers.stored import Stored, read_products
from t2r_export.checkpoints.importers.stored_positions import are_sines
from t2r_runtime.errors import UserError

CASES: dict[str, tuple[Transform, tuple[int, ...], tuple[int, ...]]] = {
    "plain": (PLAIN, (6, 5), (6, 5)),
    "transposed": (TRANSPOSED, (6, 5), (5, 6)),
    "row": (ROW, (7,), (1, 7)),
    "one plus": (ONE_PLUS, (7,), (7,)),
    "skipped": (skipped(2), (6, 5), (8, 5)),
    "skipped numbers": (skipped(3), (4,), (7,)),
    "convolution": (CONVOLUTION, (4, 10), (10, 1, 4)),
    "two parts of each head": (permuted((3, 2, -1), (1, 0, 2)), (24, 5), (24, 5)),
    "neighbours of a part of each head": (in_heads([0, 2, 1, 3, 4, 5]), (24, 5), (24, 5)),
    "pairs of each head": (permuted((3, -1, 2), (0, 2, 1)), (18,), (18,)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_transform_and_its_inverse(name: str) -> None:
    transform, ours, stored = CASES[name]
    source = Source(("a", "b"), transform)
    halves = {"a": (1, *ours[1:]), "b": (ours[0] - 1, *ours[1:])}
    assert source.shape(halves) == stored
    value = torch.randn(stored, generator=torch.Generator().manual_seed(0))
    cut = source.cut(value, halves)
    assert {part: tuple(x.shape) for part, x in cut.items()} == halves
    zeros = len(value) - len(transform.load(value)) if "skip" in name else 0  # stored for skipped rows
    torch.testing.assert_close(source.stored(cut)[zeros:], value[zeros:])
    for x in cut.values():
        assert x.is_contiguous() and x.untyped_storage().nbytes() == x.nbytes


def test_rows_of_heads_come_apart() -> None:
    """q and gate alternate, for 3 heads of size 4."""
    q, gate = torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4) + 100
    stored = torch.cat([q, gate], dim=1).flatten()
    cut = Source(("q", "gate"), permuted((3, 2, -1), (1, 0, 2))).cut(stored, {"q": (12,), "gate": (12,)})
    assert torch.equal(cut["q"], q.flatten()) and torch.equal(cut["gate"], gate.flatten())


def test_interleaved_pairs_come_apart() -> None:
    """Elements 0 2 4 of a head are the first halves of its pairs."""
    stored = torch.arange(12.0)
    loaded: Tensor = permuted((2, -1, 2), (0, 2, 1)).load(stored)
    assert loaded.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_names_go_by_kinds() -> None:
    config = small.built("translator_marian")
    found = {place(config, name)[0] for name in small.model(config).state_dict()}
    assert {"attention.q.weight", "cross.norm_sum.bias", "encoder.dense.up.weight", "head.bias"} <= found


def test_what_has_one_name_stands_in_one_tensor() -> None:
    config = small.built("softmax")
    names = {"attention.q": "h.{}.qkv", "attention.k": "h.{}.qkv", "attention.v": "h.{}.qkv"}
    weights = [f"blocks.1.parts.0.{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")]
    found = named(config, weights, names, {"h.{}.qkv.weight": TRANSPOSED}, {"h.{}.qkv.bias"})
    assert found == {
        "h.1.qkv.weight": Source(tuple(weights[::2]), TRANSPOSED),
        "h.1.qkv.bias": Source(tuple(weights[1::2]), PLAIN, optional=True),
    }


def test_products_of_other_shapes_are_refused() -> None:
    sums = {"whole": ("outer", "inner")}
    for shapes in ([(), (3, 2), (2, 4)], [(3, 4), (3, 2), ()], [(3, 4), (3, 2, 1), (2, 4)], [(3, 4), (3, 2), (1, 4)]):
        names = dict(zip(("whole", "outer", "inner"), shapes, strict=True))
        with pytest.raises(UserError, match="expected in x the shapes that its config describes"):
            read_products({name: Stored(Path(), name, shape, "F32") for name, shape in names.items()}, sums, "x")


def test_an_empty_table_is_no_sines() -> None:
    config = small.built(small.GPT2)
    assert not are_sines(config, torch.zeros(0, config.width), "F32")
