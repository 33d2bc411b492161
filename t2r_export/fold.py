"""Fold W_φ into the projections (Kasai et al. 2021, eq. 8), and verify each fold.

Each folded layer is compared with the unfolded one in float64 from a random state, because folding removes the feature
map permanently and a wrong fold would only show as slightly worse text. A folded layer cannot be finetuned as T2R.
Layers that cannot be folded stay as they are, with a reason.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from t2r_export.checkpoints.weights import assemble
from t2r_export.config.layer import LayerConfig, mapped
from t2r_export.errors import CheckFailed
from t2r_export.model.parts.base import Part
from t2r_export.model.positions.base import Positions
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_runtime.contract.state_spec import StateSpec

FOLD_TOLERANCE = 1e-10  # relative, float64; measured 1e-15 to 1e-14
AT_ONCE = 2  # layers folded in parallel; more need more memory and gain little on two cores


@dataclass(frozen=True)
class LayerFold:
    """Result of folding one mixing part of a layer."""

    layer: int
    kind: str  # of the mixer
    folded: bool
    reason: str | None  # why it was not folded
    error: float | None  # relative, float64; None unless folded now
    group: str = "layers"  # `PartConfig.group`: layers, crosses or encoder
    part: int = 0  # number in the layer

    @property
    def status(self) -> str:
        return "folded" if self.folded else f"not folded: {self.reason}"


@dataclass(frozen=True)
class Place:
    """A mixing part and its place in a model."""

    encoder: bool
    layer: int
    number: int  # in the layer
    part: Part
    ropes: Sequence[Positions]

    @property
    def prefix(self) -> str:
        """Prefix of its weights' names."""
        return f"{'encoder.' * self.encoder}blocks.{self.layer}.parts.{self.number}."


def places(model: Transformer) -> list[Place]:
    """Every mixing part of a model: self-attention, then cross-attention, then the encoder's."""
    stacks = [(False, model), *([(True, model.encoder)] if model.encoder is not None else [])]
    found = [
        Place(encoder, layer, number, block.parts[number], stack.ropes)
        for encoder, stack in stacks
        for layer, block in enumerate(stack.blocks)
        for number in block.mixing
    ]
    order = {group: n for n, group in enumerate(dict.fromkeys(place.part.config.group for place in found))}
    return sorted(found, key=lambda place: (place.encoder, order[place.part.config.group]))


def fold(model: Transformer) -> tuple[Transformer, list[LayerFold]]:
    """Return `model` with its layers folded, and the result for each mixing part.

    `model` is not changed. Unchanged weights are shared, so folding needs extra memory for two layers.

    Raises:
        CheckFailed: a folded layer differs from the unfolded one by more than 1e-10 relative in float64.
    """
    report: list[LayerFold] = []
    changed: dict[tuple[bool, int], dict[int, Part]] = defaultdict(dict)  # layer → its folded parts
    weights, found = model.state_dict(), places(model)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for place, (done, folded) in zip(found, pool.map(_fold_layer, found), strict=True):
            report.append(done)
            if folded is not None:
                changed[place.encoder, place.layer][place.number] = folded
                before = {name: weights.pop(name) for name in list(weights) if name.startswith(place.prefix)}
                after = {place.prefix + name: tensor for name, tensor in folded.state_dict().items()}
                weights |= {name: _kept(before.get(name), tensor) for name, tensor in after.items()}
    config, encoder = model.config, model.config.encoder
    if encoder is not None:
        encoder = dataclasses.replace(encoder, layers=_folded(encoder.layers, changed, True))
    config = dataclasses.replace(config, layers=_folded(config.layers, changed, False), encoder=encoder)
    return assemble(config, weights), report


def _folded(
    layers: Sequence[LayerConfig], changed: Mapping[tuple[bool, int], Mapping[int, Part]], encoder: bool
) -> tuple[LayerConfig, ...]:
    """The layer configs of a stack with the configs of folded parts."""

    def of_layer(number: int, layer: LayerConfig) -> LayerConfig:
        parts = changed.get((encoder, number), {})
        new = (parts[n].config if n in parts else old for n, old in enumerate(layer.parts))
        return dataclasses.replace(layer, parts=tuple(new))

    return mapped(layers, of_layer)


def _fold_layer(place: Place) -> tuple[LayerFold, Part | None]:
    """The result for a part, and its folded form if it was folded now."""
    layer, part, config = place.layer, place.part, place.part.config
    obstacle = None if config.folded else part.why_not_foldable()
    where = (config.group, place.number)
    if config.folded or obstacle is not None:
        return LayerFold(layer, config.label, config.folded, obstacle, None, *where), None
    error = fold_error(part, place.ropes)
    if not error <= FOLD_TOLERANCE:
        what = "layer" if config.group == "layers" else f"{config.group}, layer"
        raise CheckFailed(f"{what} {layer} folded differs by {error:.1e} relative, tolerance {FOLD_TOLERANCE}")
    return LayerFold(layer, config.label, True, None, error, *where), part.fold()


@torch.no_grad()
def fold_error(part: Part, ropes: Sequence[Positions] = ()) -> float:
    """Largest difference between a part and its folded form in float64, relative to each output's or state's maximum.

    Reads 11 tokens of 3 sequences from a random state, or with a random source of 11 tokens for cross-attention.
    """
    wide = copy.deepcopy(part).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3 * 11, wide.width, generator=generator).double()
    start = torch.randint(0, 100, (3,), generator=generator, dtype=torch.int32)
    step = Step(TorchOps(11, x), start, ropes, lengths=torch.tensor([11, 4, 7]))
    folded = wide.fold()
    state = {s.name: _random(s, generator) for s in wide.state_spec() if not s.constant}
    state_folded, read, read_folded = wide.fold_state(state), {}, {}
    if part.config.reads_source:
        read, read_folded = wide.read(x, step), folded.read(x, step)
    y, after = wide(x.flip(0), state | read, step)
    y_folded, after_folded = folded(x.flip(0), state_folded | read_folded, step)
    after = wide.fold_state(after)
    pairs = [(y, y_folded), *((after[name], after_folded[name]) for name in after)]
    pairs += [(read[name], read_folded[name]) for name in read]
    tiny = torch.finfo(torch.float32).tiny  # avoids 0/0 for outputs that are all zero, as at the start of training
    errors = [(a - b).abs().max() / a.abs().max().clamp(min=tiny) for a, b in pairs]
    return float(torch.stack(errors).max())  # torch's max keeps a NaN, Python's can lose it


def _kept(before: Tensor | None, after: Tensor) -> Tensor:
    """`before` if it equals `after`, to share memory; else `after`."""
    same = before is not None and before.shape == after.shape and torch.equal(before, after)
    return before if same and before is not None else after


def _random(spec: StateSpec, generator: torch.Generator) -> torch.Tensor:
    """A state of three sequences with values from 0 to 1."""
    return torch.rand(spec.dims(3), generator=generator).double()
