"""Versions of parts with fewer units: heads and features by gradient, channels of states by column pivoting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from t2r_export.batches.batch import window_batches
from t2r_export.model.parts.base import Part, build_part
from t2r_export.model.transformer import Transformer
from t2r_export.model.units import Units
from t2r_export.pruning.orders import by_columns, by_gradient
from t2r_export.pruning.versions import Offer, Version, sizes, state_bytes, weight_bytes
from t2r_export.pruning.watch import features
from t2r_runtime.errors import UserError

Place = tuple[int, int, Part, Units]  # layer, part number, part, units
Orders = Callable[[Transformer, Tensor, Sequence[Place]], list[Tensor]]  # -> (groups, size) units, most important first


def heads(model: Transformer, windows: Tensor) -> Offer:
    """Attention with fewer heads."""
    return _offer(model, windows, "heads", _of_gradients, weight_bytes)


def ffn(model: Transformer, windows: Tensor) -> Offer:
    """Feed-forwards with fewer features."""
    return _offer(model, windows, "ffn", _of_gradients, weight_bytes)


def state(model: Transformer, windows: Tensor) -> Offer:
    """Linear states with fewer channels."""
    return _offer(model, windows, "state", _of_channels, state_bytes)


def _offer(model: Transformer, windows: Tensor, kind: str, orders: Orders, taken: Callable[[Part], int]) -> Offer:
    """Versions of all parts that have units of this kind.

    Args:
        windows: (N, T+1) int64, on which orders are measured.
        taken: counts a part's bytes, of weights or states.
    """
    places, refused = list[Place](), list[str]()
    for layer, block in enumerate(model.blocks):
        for number, part in enumerate(block.parts):
            units = part.units(kind)
            if isinstance(units, Units):
                places.append((layer, number, part, units))
            elif units is not None:
                refused.append(f"layer {layer} keeps its {kind}: {units}")
    if not places:
        kinds = dict.fromkeys(part.label for layer in model.config.layers for part in layer.parts)
        received = "; ".join(refused[:1]) or f"parts of the kinds {', '.join(kinds)}"
        raise UserError(f"parts with {kind} that can be pruned", received, f"leave {kind} out")
    found = zip(places, orders(model, windows, places), strict=True)
    return Offer([_versions(place, order, taken) for place, order in found], refused)


def _versions(place: Place, order: Tensor, taken: Callable[[Part], int]) -> list[Version]:
    layer, number, part, units = place
    tried = sizes(units.size)
    masks = [
        torch.zeros(units.count, dtype=torch.bool).index_fill(0, order[:, :size].flatten(), True) for size in tried
    ]
    each = 0
    if len(tried) > 1:  # all units of a part have the same bytes
        saved = taken(part) - taken(cut(part, units, masks[-1]))
        each = saved // int((~masks[-1]).sum())

    def version(kept: Tensor) -> Version:
        count = int(kept.sum())
        make = (lambda: part) if kept.all() else (lambda: cut(part, units, kept))
        return Version(layer, number, count, units.count, count * each, make)

    return [version(kept) for kept in masks]


def _of_gradients(model: Transformer, windows: Tensor, places: Sequence[Place]) -> list[Tensor]:
    readers = [(part.get_parameter(units.reads), units) for _, _, part, units in places]
    scores = by_gradient(model, window_batches(windows), readers)
    return [
        score.view(units.groups, -1).argsort(1, descending=True)
        for score, (*_, units) in zip(scores, places, strict=True)
    ]


def _of_channels(model: Transformer, windows: Tensor, places: Sequence[Place]) -> list[Tensor]:
    grams = features(model, windows[:, :-1], [(layer, number) for layer, number, *_ in places])
    return [channel_order(grams[layer, number], units) for layer, number, _, units in places]


def channel_order(grams: Tensor, units: Units) -> Tensor:
    """Order of units (groups, size) from Gram matrices (kv heads, K, K). A pair's channels are K/2 apart."""
    size, K = units.size, grams.shape[-1]
    columns = torch.arange(size)[:, None] + size * torch.arange(K // size)
    orders = [by_columns(of, columns) for of in grams.unflatten(0, (units.groups, -1))]
    return torch.stack(orders) + size * torch.arange(units.groups)[:, None]


def cut(part: Part, units: Units, kept: Tensor) -> Part:
    """The part with the units `kept` (count,) bool, equally many per group.

    New rotations are appended to those of its site.
    """
    config, site = units.config(kept), part.site
    new = [rotation for rotation in config.rotations() if rotation not in site.rotations]
    with torch.random.fork_rng(devices=[]):
        made = build_part(dataclasses.replace(site, rotations=[*site.rotations, *new]), config)
    weights = {
        name: units.rows[name].selected(weight, kept) if name in units.rows else weight
        for name, weight in part.state_dict().items()
    }
    made.load_state_dict(weights)
    return made.to(next(part.parameters())).eval()
