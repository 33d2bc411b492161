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
EPS = 1e-7  # least norm that is divided by
SIZE = 0.2  # root mean square of AdamW's updates (Liu et al. 2025, arXiv 2502.16982, section 2.2)


class Muon(torch.optim.Optimizer):
    """For matrices (out, in) only; shares its learning rate with AdamW. All processes have whole updates."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p]["momentum_buffer"] = torch.zeros_like(p, requires_grad=False)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                momentum = self.state[p]["momentum_buffer"]
                momentum.lerp_(p.grad, 1 - MOMENTUM)
                update = whole(p.grad.lerp(momentum, MOMENTUM))
                direction = share(orthogonal(update, fast_dtype(p.device)), p)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(direction, alpha=-group["lr"] * SIZE * math.sqrt(max(p.shape)))


def fast_dtype(device: torch.device) -> torch.dtype:
    """The fastest sufficiently precise dtype of matrix products on a device."""
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if slow else torch.bfloat16


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Orthogonalize a matrix (M, N) by Newton-Schulz iteration: singular values become close to 1."""
    a, b, c = COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix.to(dtype) if wide else matrix.to(dtype).T
    x = x / x.norm().clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide else x.T
