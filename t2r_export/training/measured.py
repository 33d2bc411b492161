"""What is measured of training: operations, and bytes of tensors and of the process."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

# which torch's table lacks: the number of tensors, and the formula of their shapes
CPU_ATTENTION: dict[Any, tuple[int, Any]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (3, sdpa_flop_count),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (4, sdpa_backward_flop_count),
}


class Measured(TorchDispatchMode):
    """Context that counts what is computed in it.

    `flops` are floating-point operations of products, convolutions and attention; `peak` is the most bytes of tensors
    made in it that lived at once. torch's own counter has no place in a backward pass within a forward pass, which a
    loss in pieces has.
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
        formula: Any = flop_registry.get(operator)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=made)
        elif operator in CPU_ATTENTION:
            tensors, count = CPU_ATTENTION[operator]
            self.flops += count(*(x.shape for x in args[:tensors]))

    def _freed(self, which: int, size: int) -> None:
        self._known.discard(which)
        self.now -= size


def peak_bytes(device: torch.device) -> int | None:
    """The most memory that was allocated on a GPU, or that this process had; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # not Linux. getrusage would say what the parent of this process had, if that was more
        return None
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), None)
