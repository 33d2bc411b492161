"""Fold W_φ into the projections (Kasai et al. 2021, eq. 8), and prove on the spot that nothing changed.

The usual way is to trust the algebra. Here each folded layer is run beside the unfolded one in float64, from a random
state, before it is let through: the feature map disappears from the model for good, and a wrong fold would be found
only as slightly worse text. What is given up: a folded layer can no longer be finetuned as T2R.

Requires any model. Ensures the same function with every layer folded that can be, and a reason for each that cannot.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from t2r_export.checkpoints.weights import assemble
from t2r_export.errors import CheckFailed
from t2r_export.model.cross import CrossAttention
from t2r_export.model.merged import MergedAttention
from t2r_export.model.mixers.base import Mixer
from t2r_export.model.positions import Rope
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_runtime.signature import StateSpec

FOLD_TOLERANCE = 1e-10  # relative, float64; measured 1e-15 to 1e-14
AT_ONCE = 2  # layers: more need more memory, and gain little where two cores are all


@dataclass(frozen=True)
class LayerFold:
    """What became of one layer."""

    layer: int
    kind: str
    folded: bool
    reason: str | None  # why not, where not
    error: float | None  # relative, float64, where folded now
    part: str = "layers"  # where it stands: the config's field, "layers", "crosses" or "encoder"

    @property
    def status(self) -> str:
        return "folded" if self.folded else f"not folded: {self.reason}"


@dataclass(frozen=True)
class Place:
    """Where a mixer stands in a model, and what it is."""

    part: str  # as LayerFold's
    layer: int
    mixer: Mixer
    ropes: Sequence[Rope]
    prefix: str  # of its weights' names


def places(model: Transformer) -> list[Place]:
    """Every mixer of a model: its layers', then those that look at the source, then the encoder's."""
    found = [
        Place(part, n, block.mixers[i], model.ropes, f"blocks.{n}.mixers.{i}.")
        for i, part in enumerate(("layers", "crosses"))
        for n, block in enumerate(model.blocks)
        if i < len(block.mixers)
    ]
    if model.encoder is not None:
        ropes = model.encoder.ropes
        mixers = [block.mixers[0] for block in model.encoder.blocks]
        found += [Place("encoder", n, m, ropes, f"encoder.blocks.{n}.mixers.0.") for n, m in enumerate(mixers)]
    return found


def fold(model: Transformer) -> tuple[Transformer, list[LayerFold]]:
    """`model` with its layers folded, and what happened to each layer.

    `model` itself is not changed; the weights that a fold leaves as they are belong to both, so that folding a large
    model needs memory for two layers.

    Raises:
        CheckFailed: a folded layer differs from the unfolded one by more than 1e-10 relative in float64.
    """
    report: list[LayerFold] = []
    encoder = model.config.encoder
    before_fold = {"layers": model.config.layers, "crosses": model.config.crosses}
    configs = {part: list(mixers) for part, mixers in before_fold.items()}
    configs["encoder"] = [] if encoder is None else list(encoder.layers)
    weights, found = model.state_dict(), places(model)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for place, (done, folded) in zip(found, pool.map(_fold_layer, found), strict=True):
            report.append(done)
            if folded is not None:
                configs[place.part][place.layer] = folded.config
                before = {name: weights.pop(name) for name in list(weights) if name.startswith(place.prefix)}
                after = {place.prefix + name: tensor for name, tensor in folded.state_dict().items()}
                weights |= {name: _kept(before.get(name), tensor) for name, tensor in after.items()}
    layers, crosses, encoders = map(tuple, configs.values())
    encoder = None if encoder is None else dataclasses.replace(encoder, layers=encoders)
    config = dataclasses.replace(model.config, layers=layers, crosses=crosses, encoder=encoder)
    return assemble(config, weights), report


def _fold_layer(place: Place) -> tuple[LayerFold, Mixer | None]:
    """What becomes of a layer, and its folded form where it is folded now."""
    layer, mixer, part = place.layer, place.mixer, place.part
    kind, folded = mixer.config.kind, mixer.config.folded
    obstacle = None if folded else mixer.why_not_foldable()
    if folded or obstacle is not None:
        return LayerFold(layer, kind, folded, obstacle, None, part), None
    error = fold_error(mixer, place.ropes)
    if not error <= FOLD_TOLERANCE:
        where = "layer" if part == "layers" else f"{part}, layer"
        raise CheckFailed(f"{where} {layer} folded differs by {error:.1e} relative, tolerance {FOLD_TOLERANCE}")
    return LayerFold(layer, kind, True, None, error, part), mixer.fold()


@torch.no_grad()
def fold_error(mixer: Mixer, ropes: Sequence[Rope] = ()) -> float:
    """Largest difference between a mixer and its folded form in float64, relative to the largest value of each
    output and state, over 11 tokens of 3 sequences from a random state, which a source of 11 tokens makes where the
    mixer looks at one."""
    wide = copy.deepcopy(mixer).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3 * 11, wide.width, generator=generator).double()
    start = torch.randint(0, 100, (3,), generator=generator, dtype=torch.int32)
    step = Step(TorchOps(11, x), start, ropes, lengths=torch.tensor([11, 4, 7]))
    folded = wide.fold()
    state = {s.name: _random(s, generator) for s in wide.state_spec() if not s.constant}
    state_folded, read, read_folded = wide.fold_state(state), {}, {}
    if isinstance(wide, CrossAttention | MergedAttention):
        assert isinstance(folded, CrossAttention | MergedAttention)
        read, read_folded = wide.read(x, step), folded.read(x, step)
    y, after = wide.sequence(x.flip(0), state | read, step)
    y_folded, after_folded = folded.sequence(x.flip(0), state_folded | read_folded, step)
    after = wide.fold_state(after)
    pairs = [(y, y_folded), *((after[name], after_folded[name]) for name in after)]
    pairs += [(read[name], read_folded[name]) for name in read]
    tiny = torch.finfo(torch.float32).tiny  # an output that is all zero, as training often starts from, is no 0/0
    errors = [(a - b).abs().max() / a.abs().max().clamp(min=tiny) for a, b in pairs]
    return float(torch.stack(errors).max())  # torch's max keeps a NaN, Python's can lose it


def _kept(before: Tensor | None, after: Tensor) -> Tensor:
    """`after`, or the tensor before it where the fold left that as it was: one memory for both."""
    same = before is not None and before.shape == after.shape and torch.equal(before, after)
    return before if same and before is not None else after


def _random(spec: StateSpec, generator: torch.Generator) -> torch.Tensor:
    """A state of three sequences: numbers from 0 to 1."""
    return torch.rand(spec.dims(3), generator=generator).double()
