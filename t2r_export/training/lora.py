"""Low-rank adaptation (LoRA, Hu et al. 2022, arXiv 2106.09685, section 4.1) of the attention's projections.

    W' = W + (alpha / rank) · B A        A (rank, in) random, B (out, rank) zero at the start

W rests, A and B are trained. An adapter is a parametrization of the projection's weight, so a model with adapters is
run, and saved, like any other; `merge` puts W' in the place of W and leaves an ordinary model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

PROJECTIONS = ("q", "k", "v", "o")  # of a mixer: those that it has


class LowRank(nn.Module):
    """What an adapter makes of a weight (out, in)."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.scale = alpha / rank
        # uniform as nn.Linear draws its weights; on the CPU, so that every device starts alike
        A = (torch.rand(rank, columns, generator=generator) * 2 - 1) * columns**-0.5
        self.A = nn.Parameter(A.to(weight))
        self.B = nn.Parameter(torch.zeros(rows, rank).to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # the weight is as exact as `merge` will make it
            return torch.addmm(weight, self.B, self.A, alpha=self.scale)


def attach(model: Transformer, rank: int, alpha: float, seed: int) -> None:
    """Give every mixer's projections an adapter. Ensures that the model computes what it did before.

    Raises:
        UserError: no mixer has one of the projections.
    """
    projections = list(_projections(model))
    if not projections:
        raise UserError(
            f"mixers with projections called {', '.join(PROJECTIONS)}", "none", "train all weights, without LoRA"
        )
    generator = torch.Generator().manual_seed(seed)
    for projection in projections:
        adapter = LowRank(projection.weight, rank, alpha, generator)
        parametrize.register_parametrization(projection, "weight", adapter)


def attached(weights: Iterable[str]) -> bool:
    """Whether these are the names of the weights of a model with adapters."""
    return any(".parametrizations." in name and name.endswith(".A") for name in weights)


def trainable(model: Transformer) -> dict[str, nn.Parameter]:
    """The adapters, and what else the mixers have beside their projections: feature maps, gates."""
    adapters = {
        f"{place}.{name}"
        for place, module in model.named_modules()
        if isinstance(module, LowRank)
        for name, _ in module.named_parameters()
    }
    resting = {id(p) for projection in _projections(model) for p in projection.parameters()}
    mixers = {id(p) for block in model.blocks for mixer in block.mixers for p in mixer.parameters()}
    return {
        name: p for name, p in model.named_parameters() if name in adapters or id(p) in mixers and id(p) not in resting
    }


@torch.no_grad()
def merge(model: Transformer) -> None:
    """Add what the adapters learned to the weights and remove them. Nothing to do for a model without."""
    for projection in _projections(model):
        forms: Any = getattr(projection, "parametrizations", None)
        if forms is not None and isinstance(forms.weight[0], LowRank):
            parametrize.remove_parametrizations(projection, "weight")
            # the weight has come in behind the bias: back to where a loaded model has it
            bias = projection.bias
            del projection.bias
            projection.register_parameter("bias", bias)


def _projections(model: Transformer) -> Iterator[nn.Linear]:
    for mixer in (mixer for block in model.blocks for mixer in block.mixers):
        for name in PROJECTIONS:
            projection = getattr(mixer, name, None)
            if isinstance(projection, nn.Linear):
                yield projection
