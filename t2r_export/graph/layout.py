"""How a model's states become a graph's states: a tensor a layer, or all layers of a kind packed into one.

`layers` keeps S.0, S.1, … as they are. `packed` stacks them on a second axis: S is (B, L, G, K, V). A runtime with a
cost for every binding wants the packed form; which one is faster on the CPU provider is in docs/performance.md.
A compensated state is two of the graph's, whose sum is the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from t2r_runtime.errors import UserError
from t2r_runtime.signature import PAST, StateSpec

LAYOUTS = ("layers", "packed")


@dataclass(frozen=True)
class Group:
    """One state of the graph and the model's states that it holds, in order."""

    spec: StateSpec
    members: tuple[StateSpec, ...]
    low: StateSpec | None = None  # what the sum of a compensated state has rounded off

    @property
    def states(self) -> list[StateSpec]:
        """The graph's states that hold the model's."""
        return [self.spec] if self.low is None else [self.spec, self.low]

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


def low_name(name: str) -> str:
    """`S.3` -> `S_low.3`: the state beside a compensated one."""
    kind, dot, layer = name.partition(".")
    return f"{kind}_low{dot}{layer}"


def with_low(groups: Sequence[Group], names: Iterable[str]) -> list[Group]:
    """The groups with a low part for those whose state is among the names, as of a graph's inputs.

    Raises:
        UserError: there is none, so that nothing would be compensated.
    """
    chosen = {name.removeprefix(PAST) for name in names}
    if not chosen:
        raise UserError("states that are sums, as S and z of linear attention", "none", "leave out --float16-safe")
    return [
        replace(g, low=replace(g.spec, name=low_name(g.spec.name), initial=0.0)) if g.spec.name in chosen else g
        for g in groups
    ]


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
    packed = {g.spec.name: np.stack(arrays[g.spec.name], 1) if g.packed else arrays[g.spec.name][0] for g in groups}
    for g in groups:
        if g.low is not None:  # the state to half precision, as an accelerator would round it, and the rest
            whole = packed[g.spec.name]
            packed[g.spec.name] = whole.astype(np.float16).astype(whole.dtype)
            packed[g.low.name] = whole - packed[g.spec.name]
    return packed


def unpack(states: Mapping[str, np.ndarray], groups: list[Group]) -> dict[str, np.ndarray]:
    """Inverse of `pack`."""
    out = {}
    for g in groups:
        whole = states[g.spec.name] if g.low is None else states[g.spec.name].astype(np.float64) + states[g.low.name]
        for i, member in enumerate(g.members):
            out[member.name] = whole[:, i] if g.packed else whole
    return out
