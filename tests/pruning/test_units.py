"""Removing units: those with zero weights leave the output unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import small
from t2r_export.config.attention import HeadsConfig
from t2r_export.model.parts.base import Part
from t2r_export.model.transformer import Transformer
from t2r_export.model.units import Units
from t2r_export.pruning.parts import cut
from t2r_export.pruning.versions import Version, assembled

KINDS = ("heads", "ffn", "state")
CONVOLVED = small.linear(
    6, positions="after", conv=4, output_gate=True, update_rule="gated_delta", gate="data", normalizer="rms_norm"
)
MORE = {
    "one kv head": dataclasses.replace(small.GPT2, attention=HeadsConfig(heads=5, kv_heads=1, head_size=4)),
    "delta after": small.with_layers(small.LLAMA, CONVOLVED, small.linear(8, update_rule="delta", normalizer="none")),
    "gates per head": small.LLAMA.with_attention(gate=True, gate_per_head=True, qk_norm=True),
    "rotary_pairs": small.with_layers(
        small.LLAMA, small.linear(4, positions="after", rotary_pairs=(1, 4), rotary_of=10)
    ),
}
# the delta rule normalizes with an eps in the mean of squares, which depends on the number of units
NORMED = {"delta": 1e-4, "delta_rotary": 1e-4, "delta_wide": 1e-4, "delta after": 1e-3}
CASES = {**{name: config for name, config in small.MODELS.items() if not name.startswith("translator")}, **MORE}


def places(model: Transformer, kind: str) -> Iterator[tuple[int, int, Part, Units]]:
    for layer, block in enumerate(model.blocks):
        for number, part in enumerate(block.parts):
            if isinstance(units := part.units(kind), Units):
                yield layer, number, part, units


def some(units: Units) -> Tensor:
    """A mask of kept units, different in each group."""
    kept = torch.ones(units.groups, units.size, dtype=torch.bool)
    for group in range(units.groups):
        kept[group, (group + 1) % units.size] = units.size == 1
    return kept.flatten()


@torch.no_grad()
def zero(part: Part, units: Units, kept: Tensor) -> None:
    """Set the rows of all removed units to 0."""
    weights = dict(part.named_parameters())
    for name, (axes, owners) in units.rows.items():
        if name in weights:
            gone = (owners >= 0) & ~kept[owners.clamp(min=0)]
            weights[name].movedim(axes, tuple(range(len(axes))))[gone] = 0.0


def found() -> list[tuple[str, str]]:
    models = {name: small.model(config) for name, config in CASES.items()}
    return [(name, kind) for name, model in models.items() for kind in KINDS if any(places(model, kind))]


FOUND = found()


@pytest.mark.parametrize("kind", KINDS)
def test_cases_are_of_every_kind(kind: str) -> None:
    assert sum(of == kind for _, of in FOUND) > 40


@pytest.mark.parametrize("name, kind", FOUND)
def test_what_is_zero_may_go(name: str, kind: str) -> None:
    model = small.model(CASES[name]).double()
    versions = []
    for layer, number, part, units in places(model, kind):
        kept = some(units)
        zero(part, units, kept)
        count = int(kept.sum())
        versions.append(Version(layer, number, count, units.count, 0, lambda p=part, u=units, k=kept: cut(p, u, k)))
    ids = small.ids(length=9)
    smaller = assembled(model, versions)
    assert smaller.config != model.config
    assert sum(w.numel() for w in smaller.parameters()) < sum(w.numel() for w in model.parameters())
    bound = NORMED.get(name, 1e-12) if kind == "state" else 1e-12
    assert (smaller(ids) - model(ids)).abs().max() <= bound * model(ids).abs().max()
