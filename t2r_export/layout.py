"""How a model's states become a graph's states: a tensor a layer, or all layers of a kind packed into one.

`layers` keeps S.0, S.1, … as they are. `packed` stacks them on a second axis: S is (B, L, G, K, V). A runtime with a
cost for every binding wants the packed form; which one is faster on the CPU provider is in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from t2r_runtime.errors import UserError
from t2r_runtime.signature import StateSpec

LAYOUTS = ("layers", "packed")


@dataclass(frozen=True)
class Group:
    """One state of the graph and the model's states that it holds, in order."""

    spec: StateSpec
    members: tuple[StateSpec, ...]

    @property
    def packed(self) -> bool:
        return self.members != (self.spec,)


def group(specs: list[StateSpec], layout: str) -> list[Group]:
    """The graph's states for the model's.

    Raises:
        UserError: an unknown layout, or layers whose states differ in shape and so cannot be packed.
    """
    if layout not in LAYOUTS:
        raise UserError(f"a state layout of {', '.join(LAYOUTS)}", repr(layout), "choose one of those")
    if layout == "layers":
        return [Group(spec, (spec,)) for spec in specs]
    kinds: dict[str, list[StateSpec]] = {}
    for spec in specs:
        kinds.setdefault(spec.name.split(".")[0], []).append(spec)
    return [_pack(name, members) for name, members in kinds.items()]


def _pack(name: str, members: list[StateSpec]) -> Group:
    first = members[0]
    if [first.name] == [name]:
        return Group(first, (first,))
    for other in members:
        if replace(other, name=first.name) != first:
            raise UserError(
                f"states of one shape to pack into {name}",
                f"{first.name} {list(first.shape)} and {other.name} {list(other.shape)}",
                "export with --state-layout layers",
            )
    batch, *rest = first.shape
    return Group(StateSpec(name, first.dtype, (batch, len(members), *rest), first.initial), tuple(members))


def pack(states: Mapping[str, Any], groups: list[Group]) -> dict[str, np.ndarray]:
    """The model's states (arrays by name) as the graph's."""
    arrays = {g.spec.name: [np.asarray(states[m.name]) for m in g.members] for g in groups}
    return {g.spec.name: np.stack(arrays[g.spec.name], 1) if g.packed else arrays[g.spec.name][0] for g in groups}


def unpack(states: Mapping[str, np.ndarray], groups: list[Group]) -> dict[str, np.ndarray]:
    """Inverse of `pack`."""
    out = {}
    for g in groups:
        for i, member in enumerate(g.members):
            out[member.name] = states[g.spec.name][:, i] if g.packed else states[g.spec.name]
    return out
