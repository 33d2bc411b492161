"""The cheapest of several options per place under a budget of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from t2r_runtime.errors import UserError


class Priced(Protocol):
    """An option with bytes and a cost."""

    @property
    def bytes(self) -> int: ...
    @property
    def cost(self) -> float: ...


P = TypeVar("P", bound=Priced)


def require_room(sizes: Sequence[Sequence[int]], room: int, budget: int) -> None:
    """Raise UserError unless the smallest of each layer's bytes fit into `room`; the message refers to `budget`."""
    least = sum(map(min, sizes))
    if least > room:
        do = "raise it, or offer mixers with smaller states"
        raise UserError(f"a budget of at least {least + budget - room} bytes", f"{budget}", do)


def cheapest(options: Sequence[Sequence[P]], room: int, budget: int) -> list[P]:
    """The option per layer with the smallest total cost whose bytes fit into `room`.

    Exact dynamic programming: keeps every Pareto-optimal pair of bytes and cost.

    Raises:
        UserError: no combination fits; the message refers to `budget`.
    """
    require_room([[option.bytes for option in layer] for layer in options], room, budget)
    least = [min(option.bytes for option in layer) for layer in options]
    after = [sum(least[layer + 1 :]) for layer in range(len(options))]  # minimum bytes of later layers
    best: list[tuple[int, float, tuple[P, ...]]] = [(0, 0.0, ())]
    for layer, choices in enumerate(options):
        sums = [(b + o.bytes, i + o.cost, (*picks, o)) for b, i, picks in best for o in choices]
        best = []
        for entry in sorted(sums, key=lambda entry: entry[:2]):
            if entry[0] + after[layer] <= room and (not best or entry[1] < best[-1][1]):
                best.append(entry)
    return list(best[-1][2])
