"""Units that a part can do without: heads, features of a feed-forward, channels of a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Which unit each row of a weight belongs to.

    With two axes the rows of each index of the first axis are told apart, and as many of them stay for each.
    """

    axes: tuple[int, ...]
    owners: Tensor  # int64, a unit for each index of the axes; -1: of none, which stays

    def selected(self, weight: Tensor, kept: Tensor) -> Tensor:
        """A copy of `weight` without the rows of other units than `kept` (count,) bool."""
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
    rows: Mapping[str, Rows]  # by name of the weight; other weights have no rows of units
    config: Callable[[Tensor], Any]  # kept (count,) bool -> config of the smaller part
    groups: int = 1  # each keeps as many of its count / groups units
    reads: str = ""  # the weight whose columns read the units' outputs, if there is one

    @property
    def size(self) -> int:
        """Units in a group."""
        return self.count // self.groups


def spread(count: int, sizes: list[int]) -> Tensor:
    """Owners of joined pieces of an axis, each cut into `count` equal runs; pieces of negative size have no owner."""
    made = [
        torch.full((-size,), -1) if size < 0 else torch.arange(count).repeat_interleave(size // count) for size in sizes
    ]
    return torch.cat(made)
