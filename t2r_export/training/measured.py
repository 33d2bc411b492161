"""Measurements of training: floating-point operations, and peak bytes of tensors and of the process."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

ATTENTION = "_scaled_dot_product"  # prefix of torch's attention operators on every device


class Measured(TorchDispatchMode):
    """Context that counts operations and tensor bytes.

    `flops` are floating-point operations of products, convolutions and attention; `peak` is the maximum total size of
    live tensors created in the context. torch's own counter does not support a backward pass within a forward pass,
    as in a loss in pieces.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = func(*args, **(kwargs or {}))
        self._count(func._overloadpacket, args, kwargs or {}, made)
        for x in tree_leaves(made):
            if isinstance(x, Tensor) and (storage := x.untyped_storage())._cdata not in given | self._known:
                self._known.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        return made

    def _count(self, operator: Any, args: Any, kwargs: Any, made: Any) -> None:
        if operator.__name__.startswith(ATTENTION):
            self.flops += attention_flops(args, backward=operator.__name__.endswith("_backward"))
        elif operator in flop_registry:
            self.flops += flop_registry[operator](*args, **kwargs, out_val=made)

    def _freed(self, which: int, size: int) -> None:
        self._known.discard(which)
        self.now -= size


def attention_flops(args: Any, backward: bool) -> int:
    """Operations of torch's attention with q (B, H, T, K), k (B, G, N, K) and v (B, G, N, V), or of its gradient.

    torch's own formulas reject G < H before version 2.13, and lack the CPU kernels.

    Args:
        args: arguments of the operator: q, k, v, …; with `backward` preceded by the output's gradient.
    """
    tensors: Sequence[Tensor] = args[1:4] if backward else args[:3]
    q, k, v = tensors
    pairs = math.prod(q.shape[:-1]) * k.shape[-2]
    return 2 * pairs * ((3 if backward else 1) * q.shape[-1] + (2 if backward else 1) * v.shape[-1])


def peak_bytes(device: torch.device) -> int | None:
    """Peak memory allocated on a GPU, or peak resident memory of this process; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # not Linux; getrusage may report the peak of the parent process
        return None
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), None)
