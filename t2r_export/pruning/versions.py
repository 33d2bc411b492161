"""Versions of a model's parts: candidate sizes, their costs, and the cheapest choice that removes a share.

A version replaces one part, or removes one layer. Its cost is the measured increase in nats per token of the model with
only this version swapped in, on held-out text. Costs are assumed to add up, as in the choice of mixers
(t2r_export.training.layer_choice) and of bits (t2r_export.quantizers.budget).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from t2r_export.batches.batch import Batch
from t2r_export.checkpoints.weights import assemble
from t2r_export.model.parts.base import Part
from t2r_export.model.positions.base import build_positions
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import evaluate
from t2r_export.training.cheapest import cheapest
from t2r_runtime.errors import UserError

RUNGS = 8  # candidate sizes per part, evenly spaced
UNIT = 1e-6  # nats per token


@dataclass(frozen=True)
class Version:
    """One size of a part. The full size is the part itself, at cost 0."""

    layer: int
    number: int | None  # of the part in its layer; None: the whole layer
    kept: int  # units
    of: int  # units
    bytes: int  # of the kept units
    make: Callable[[], Part | None]  # None: the layer is removed
    cost: float = 0.0  # nats per token

    @property
    def full(self) -> bool:
        return self.kept == self.of


@dataclass(frozen=True)
class Offer:
    """Versions of a kind, per part or layer with the full size first, and messages on refused parts."""

    places: list[list[Version]]
    refused: list[str]  # one line per part or layer that cannot be pruned


def weight_bytes(module: nn.Module) -> int:
    """Bytes of the weights of a part or a model."""
    return sum(weight.nbytes for weight in module.parameters())


def state_bytes(module: Part | Transformer) -> int:
    """Bytes of the states of a part or a model for one sequence; growing states count at one token."""
    return sum(spec.bytes(1, 1) for spec in module.state_spec())


def sizes(count: int) -> list[int]:
    """Candidate numbers of units in descending order: at most RUNGS, each at least 1 unit."""
    return sorted({max(1, round(count * rung / RUNGS)) for rung in range(1, RUNGS + 1)}, reverse=True)


def measured(
    model: Transformer, kind: str, offer: Offer, batches: Sequence[Batch], on_progress: Callable[[str], object]
) -> list[list[Version]]:
    """The versions of this kind with measured costs."""
    base, found = evaluate(model, batches).nats, []
    for place in offer.places:
        costs = []
        for version in place:
            with swapped(model, version):
                costs.append(0.0 if version.full else evaluate(model, batches).nats - base)
        found.append([dataclasses.replace(version, cost=cost) for version, cost in zip(place, costs, strict=True)])
        least = found[-1][-1]
        on_progress(f"{kind}, layer {least.layer}: {least.kept} of {least.of} cost {least.cost:+.4f} nats/token")
    return found


def chosen(kind: str, share: float, places: Sequence[Sequence[Version]]) -> list[Version]:
    """The version per part or layer with the smallest total cost that removes at least `share` of the bytes.

    Costs are at least UNIT for all units of a part, proportionally less for fewer: zero or negative measured costs are
    no reason to remove more than requested.

    Raises:
        UserError: the smallest versions are too large, or nothing would be left.
    """
    total, least = (sum(pick(v.bytes for v in place) for place in places) for pick in (max, min))
    room = int(total * (1 - share))
    if least > room:
        most = f"a share of {kind} of at most {1 - least / total:.3g}, with at least one unit per group"
        raise UserError(most, f"{share:g}", "choose a smaller share")
    priced = [
        [dataclasses.replace(v, cost=max(v.cost, UNIT * (v.of - v.kept) / v.of)) for v in place] for place in places
    ]
    best = cheapest(priced, room, room)
    found = [place[prices.index(one)] for place, prices, one in zip(places, priced, best, strict=True)]
    if not any(version.kept for version in found):
        raise UserError(f"a share of {kind} that leaves some", f"{share:g}", "choose a smaller share")
    return found


@contextmanager
def swapped(model: Transformer, version: Version) -> Iterator[None]:
    """Context in which a version replaces its part or layer."""
    blocks: nn.ModuleList = model.blocks  # type: ignore[assignment]
    if version.full:
        yield
    elif version.number is None:
        model.blocks = nn.ModuleList(b for n, b in enumerate(blocks) if n != version.layer)  # type: ignore[assignment]
        try:
            yield
        finally:
            model.blocks = blocks  # type: ignore[assignment]
    else:
        parts: Any = model.blocks[version.layer].parts
        made, ropes = version.make(), model.ropes
        assert made is not None
        own, parts[version.number] = parts[version.number], made
        new = made.site.rotations[len(ropes) :]
        model.ropes = nn.ModuleList([*ropes, *(build_positions(*each) for each in new)])  # type: ignore[assignment]
        try:
            yield
        finally:
            parts[version.number], model.ropes = own, ropes


def assembled(model: Transformer, versions: Sequence[Version]) -> Transformer:
    """A copy of the model with these versions."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    layers, gone = list(model.config.layers), set[int]()
    for version in versions:
        if version.full:
            continue
        made = version.make()
        if made is None or version.number is None:
            gone.add(version.layer)
            continue
        layer, place = layers[version.layer], f"blocks.{version.layer}.parts.{version.number}."
        layers[version.layer] = layer.replaced(layer.parts[version.number], made.config)
        weights = {name: weight for name, weight in weights.items() if not name.startswith(place)}
        weights |= {place + name: weight.clone() for name, weight in made.state_dict().items()}
    kept = [n for n in range(len(layers)) if n not in gone]
    config = dataclasses.replace(model.config, layers=tuple(layers[n] for n in kept))
    return assemble(config, _renumbered(weights, kept))


def _renumbered(weights: dict[str, Tensor], kept: Sequence[int]) -> dict[str, Tensor]:
    """Weights with the layers `kept` renumbered and other layers removed."""
    found = dict[str, Tensor]()
    for name, weight in weights.items():
        stack, _, rest = name.partition(".")
        number, _, behind = rest.partition(".")
        if stack != "blocks":
            found[name] = weight
        elif int(number) in kept:
            found[f"blocks.{kept.index(int(number))}.{behind}"] = weight
    return found
