"""Muon (Jordan et al. 2024): orthogonalized momentum, with updates of AdamW's size.

Same as torch.optim.Muon, but in float32 on CPUs without bfloat16 instructions, which emulate bfloat16 slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.training.sharding import share, whole

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, steepest at 0
ITERATIONS = 5
EPS = 1e-7  # minimum norm in divisions
AT_ONCE = 1 << 24  # elements per batch of matrices: 64 MiB of unsharded updates
SIZE = 0.2  # root mean square of AdamW's updates (Liu et al. 2025, arXiv 2502.16982, section 2.2)


class Muon(torch.optim.Optimizer):
    """For matrices (out, in) only; shares its learning rate with AdamW. Every process computes unsharded updates."""

    def __init__(
        self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["momentum_buffer"] = torch.zeros_like(p, requires_grad=False)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for alike in batches([p for p in group["params"] if p.grad is not None]):
                updates = [self._update(p) for p in alike]
                directions = orthogonal(torch.stack(updates), fast_dtype(updates[0].device))
                for p, direction in zip(alike, directions, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(share(direction, p), alpha=-group["lr"] * SIZE * math.sqrt(max(p.shape)))

    def _update(self, p: Tensor) -> Tensor:
        """Nesterov momentum of a matrix with a gradient, unsharded in every process."""
        assert p.grad is not None
        momentum = self.state[p]["momentum_buffer"]
        momentum.lerp_(p.grad, 1 - MOMENTUM)
        return whole(p.grad.lerp(momentum, MOMENTUM))


def batches(matrices: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group matrices of equal shape to orthogonalize together; separate kernel launches would dominate the products.

    On a CPU each group has one matrix: twelve of 1024 x 256 at once took 1.25 times as long as one by one.
    """
    alike: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        alike.setdefault(matrix.shape, []).append(matrix)
    found = []
    for shape, those in alike.items():
        size = 1 if those[0].device.type == "cpu" else max(1, AT_ONCE // shape.numel())
        found += [those[first : first + size] for first in range(0, len(those), size)]
    return found


def fast_dtype(device: torch.device) -> torch.dtype:
    """The fastest sufficiently precise dtype of matrix products on a device."""
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if slow else torch.bfloat16


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Orthogonalize matrices (N, rows, columns) by Newton-Schulz iteration: singular values become close to 1."""
    a, b, c = COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices.to(dtype) if wide else matrices.to(dtype).mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
