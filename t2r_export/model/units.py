"""Prunable units of a part: heads, features of a feed-forward, channels of a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """The unit of each row of a weight.

    With two axes, rows are pruned separately for each index of the first axis; equally many are kept for each.
    """

    axes: tuple[int, ...]
    owners: Tensor  # int64, unit of each index of the axes; -1: no unit, always kept

    def selected(self, weight: Tensor, kept: Tensor) -> Tensor:
        """A copy of `weight` with only the rows of units `kept` (count,) bool, and rows of no unit."""
        places = tuple(range(len(self.axes)))
        moved = weight.movedim(self.axes, places)
        stays = (self.owners < 0) | kept[self.owners.clamp(min=0)]
        rest = moved.shape[len(places) :]
        made = moved[stays].reshape(*self.owners.shape[:-1], -1, *rest)
        return made.movedim(places, self.axes).contiguous()


@dataclass(frozen=True)
class Units:
    """The units of one kind in a part, numbered group by group."""

    count: int
    rows: Mapping[str, Rows]  # by weight name; other weights are kept whole
    config: Callable[[Tensor], Any]  # kept (count,) bool -> config of the smaller part
    groups: int = 1  # each has count / groups units, and keeps as many as the others
    reads: str = ""  # the weight whose columns read the units' outputs, if any

    @property
    def size(self) -> int:
        """Units per group."""
        return self.count // self.groups


def spread(count: int, sizes: list[int]) -> Tensor:
    """Units of an axis of concatenated pieces, each of `count` equal runs; pieces of negative size have no unit."""
    made = [
        torch.full((-size,), -1) if size < 0 else torch.arange(count).repeat_interleave(size // count) for size in sizes
    ]
    return torch.cat(made)
