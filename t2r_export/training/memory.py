"""Memory of training: bfloat16 teacher, recomputed activations, and reuse of freed memory between steps."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from t2r_export.model.block import Block
from t2r_export.model.mixers.feature_maps import FeatureMaps
from t2r_runtime import glibc
from t2r_runtime.errors import UserError

# options of glibc's malloc for training, and the defaults
KEEPING = {glibc.MMAP_MAX: 0, glibc.TRIM_THRESHOLD: (1 << 31) - 1, glibc.TOP_PAD: 1 << 28}
GROWTH = 2  # resident memory at which freed memory is returned, relative to a step with a compact heap
USUAL = {glibc.MMAP_MAX: 1 << 16, glibc.TRIM_THRESHOLD: 1 << 17, glibc.TOP_PAD: 1 << 17}


def narrow(model: nn.Module) -> None:
    """Convert the weights of linear layers to bfloat16, as autocast would: the same results in half the memory.

    Embedding tables and heads tied to them stay float32. All tensors are copied, so that the mapped file is released.
    """
    tables = {id(p) for module in model.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module.weight) not in tables:
            module.to(torch.bfloat16)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype != torch.bfloat16:
            tensor.data = tensor.data.clone()


def recompute(model: nn.Module, does: bool) -> None:
    """Set whether blocks recompute intermediate values in the backward pass (Chen et al. 2016, arXiv 1604.06174).

    Raises:
        UserError: feature maps that are redrawn in every forward pass.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    redrawn = [module for block in blocks for module in block.modules() if isinstance(module, FeatureMaps)]
    if does and any(module.config.redraw for module in redrawn):
        received = "feature maps that are redrawn in every pass"
        raise UserError("reproducible values for recompute", received, "leave one out")
    for block in blocks:
        block.recomputes = does


@contextlib.contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Context in which glibc keeps freed memory in the process; without glibc, nothing changes.

    By default glibc returns tensors above 32 MiB, such as logits, to the system at once; the next step would allocate
    them again, and the system would zero every page.
    """
    glibc.choose(KEEPING)
    try:
        yield
    finally:
        glibc.choose(USUAL)
        glibc.trim()


class KeptMemory:
    """Limits the memory that `freed_memory_kept` keeps to `GROWTH` times that after a step with a compact heap.

    Tensors of many shapes, as batches of pairs have them, leave gaps in the heap that later tensors do not fit.
    """

    def __init__(self) -> None:
        self._compact: int | None = None  # resident memory after the first step with a compact heap

    def after_step(self) -> None:
        used = resident_bytes()
        if self._compact is None:
            self._compact = used
        elif used > GROWTH * self._compact:
            glibc.trim()
            self._compact = None


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free for training on a device; None if unknown. Limits of containers are not read."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def resident_bytes() -> int:
    """Resident memory of this process; 0 on systems other than Linux."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
