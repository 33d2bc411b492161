"""Low-rank adaptation (LoRA, Hu et al. 2022, arXiv 2106.09685, section 4.1) of the matrices of blocks.

    W' = W + (alpha / rank) · B A        A (rank, in) random, B (out, rank) initially zero

W is frozen, A and B are trained. An adapter is a parametrization of the weight, so models with adapters run and save as
usual; `merge` replaces W by W'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.model.parts.dense import Dense
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

PROJECTIONS = ("q", "k", "v", "o")  # of a mixer, if it has them
FEED_FORWARD = ("gate", "up", "down")  # of a dense feed-forward, if it has them


class LowRank(nn.Module):
    """The adapter of a weight (out, in)."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.scale, self.alone = alpha / rank, False
        # initialized as nn.Linear; drawn on the CPU for equal values on all devices
        A = (torch.rand(rank, columns, generator=generator) * 2 - 1) * columns**-0.5
        self.A = nn.Parameter(A.to(weight))
        self.B = nn.Parameter(torch.zeros(rows, rank).to(weight))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # same precision as `merge`
            return torch.addmm(weight, self.B, self.A, alpha=self.scale)


def attach(
    model: Transformer, rank: int, alpha: float, seed: int, targets: str = "attention", mixers: bool = True
) -> None:
    """Add an adapter to each matrix of `targets`. The model's output does not change.

    Args:
        targets: "attention", the projections of every mixer; or "all", also the matrices of dense feed-forwards.
        mixers: whether `trainable` includes the mixers' other weights.

    Raises:
        UserError: see `check`.
    """
    check(model, rank)
    generator = torch.Generator().manual_seed(seed)
    for matrix in [*_projections(model), *(_feed_forwards(model) if targets == "all" else ())]:
        adapter = LowRank(matrix.weight, rank, alpha, generator)
        adapter.alone = not mixers
        parametrize.register_parametrization(matrix, "weight", adapter)


def check(model: Transformer, rank: int) -> None:
    """Raise UserError if no mixer has projections, or the rank exceeds that of every one."""
    sizes = [min(projection.weight.shape) for projection in _projections(model)]
    if not sizes:
        raise UserError(
            f"mixers with projections called {', '.join(PROJECTIONS)}", "none", "train all weights, without LoRA"
        )
    if rank > max(sizes):
        expected = f"a rank of the adapters of at most {max(sizes)}, that of the largest projection"
        raise UserError(expected, str(rank), "correct --lora rank")


def attached(weights: Iterable[str]) -> bool:
    """Whether these weight names belong to a model with adapters."""
    return any(".parametrizations." in name and name.endswith(".A") for name in weights)


def trainable(model: Transformer) -> dict[str, nn.Parameter]:
    """Parameters of the adapters, and of mixers outside their projections (feature maps, gates) unless left alone."""
    attached = {place: module for place, module in model.named_modules() if isinstance(module, LowRank)}
    adapters = {f"{place}.{name}" for place, module in attached.items() for name, _ in module.named_parameters()}
    if any(module.alone for module in attached.values()):
        return {name: p for name, p in model.named_parameters() if name in adapters}
    resting = {id(p) for projection in _projections(model) for p in projection.parameters()}
    mixers = {id(p) for block in model.blocks for mixer in block.mixers for p in mixer.parameters()}
    return {
        name: p for name, p in model.named_parameters() if name in adapters or id(p) in mixers and id(p) not in resting
    }


@torch.no_grad()
def merge(model: Transformer) -> None:
    """Merge the adapters into the weights and remove them, if there are any."""
    for matrix in [*_projections(model), *_feed_forwards(model)]:
        forms: Any = getattr(matrix, "parametrizations", None)
        if forms is not None and isinstance(forms.weight[0], LowRank):
            parametrize.remove_parametrizations(matrix, "weight")
            # removal registers the weight after the bias; restore the order of a loaded model
            bias = matrix.bias
            del matrix.bias
            matrix.register_parameter("bias", bias)


def _projections(model: Transformer) -> Iterator[nn.Linear]:
    for block in model.blocks:
        for mixer in block.mixers:
            yield from _matrices(mixer, PROJECTIONS)


def _feed_forwards(model: Transformer) -> Iterator[nn.Linear]:
    for block in model.blocks:
        for part in block.parts:
            if isinstance(part, Dense):
                yield from _matrices(part, FEED_FORWARD)


def _matrices(part: nn.Module, names: Iterable[str]) -> Iterator[nn.Linear]:
    """The linear layers of a part with these names."""
    found = (getattr(part, name, None) for name in names)
    return (matrix for matrix in found if isinstance(matrix, nn.Linear))
