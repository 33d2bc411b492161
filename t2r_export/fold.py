"""Fold W_φ into the projections (Kasai et al. 2021, eq. 8), and prove on the spot that nothing changed.

The usual way is to trust the algebra. Here each folded layer is run beside the unfolded one in float64, from a random
state, before it is let through: the feature map disappears from the model for good, and a wrong fold would be found
only as slightly worse text. What is given up: a folded layer can no longer be finetuned as T2R.

Requires any model. Ensures the same function with every layer folded that can be, and a reason for each that cannot.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass

import torch

from t2r_export.mixers import Mixer
from t2r_export.model import Transformer
from t2r_export.weights import assemble
from t2r_runtime.errors import CheckFailed
from t2r_runtime.signature import StateSpec

FOLD_TOLERANCE = 1e-10  # relative, float64; measured 1e-15 to 1e-14


@dataclass(frozen=True)
class LayerFold:
    """What became of one layer."""

    layer: int
    kind: str
    folded: bool
    reason: str | None  # why not, where not
    error: float | None  # relative, float64, where folded now

    @property
    def status(self) -> str:
        return "folded" if self.folded else f"not folded: {self.reason}"


def fold(model: Transformer) -> tuple[Transformer, list[LayerFold]]:
    """`model` with its layers folded, and what happened to each layer.

    `model` itself is not changed; the weights that a fold leaves as they are belong to both, so that folding a large
    model needs memory for one layer.

    Raises:
        CheckFailed: a folded layer differs from the unfolded one by more than 1e-10 relative in float64.
    """
    layers, report = list(model.config.layers), []
    weights = model.state_dict()
    for layer, block in enumerate(model.blocks):
        mixer, error = block.mixer, None
        obstacle = None if mixer.config.folded else mixer.fold_obstacle()
        if obstacle is None and not mixer.config.folded:
            error = fold_error(mixer)
            if not error <= FOLD_TOLERANCE:
                raise CheckFailed(f"layer {layer} folded differs by {error:.1e} relative, tolerance {FOLD_TOLERANCE}")
            folded = mixer.fold()
            layers[layer] = folded.config
            prefix = f"blocks.{layer}.mixer."
            weights = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
            weights |= {prefix + name: tensor for name, tensor in folded.state_dict().items()}
        report.append(LayerFold(layer, mixer.config.kind, obstacle is None, obstacle, error))
    config = dataclasses.replace(model.config, layers=tuple(layers))
    return assemble(config, weights), report


@torch.no_grad()
def fold_error(mixer: Mixer) -> float:
    """Largest difference between a mixer and its folded form in float64, relative to the largest value of each
    output and state, over 11 tokens of 3 sequences from a random state."""
    wide = copy.deepcopy(mixer).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 11, wide.width, generator=generator)
    state = {s.name: _random(s, generator) for s in wide.state_spec()}
    y, after = wide(x.double(), state, None)
    y_folded, after_folded = wide.fold()(x.double(), wide.fold_state(state), None)
    after = wide.fold_state(after)
    pairs = [(y, y_folded), *((after[name], after_folded[name]) for name in after)]
    tiny = torch.finfo(torch.float32).tiny  # an output that is all zero, as training often starts from, is no 0/0
    errors = [(a - b).abs().max() / a.abs().max().clamp(min=tiny) for a, b in pairs]
    return float(torch.stack(errors).max())  # torch's max keeps a NaN, Python's can lose it


def _random(spec: StateSpec, generator: torch.Generator) -> torch.Tensor:
    """A state of three sequences: numbers from 0 to 1, or counts of tokens."""
    if spec.dtype == "int32":
        return torch.randint(0, 100, spec.dims(3), generator=generator, dtype=torch.int32)
    return torch.rand(spec.dims(3), generator=generator).double()
