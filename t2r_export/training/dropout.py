"""Dropout: in training, numbers of what each part of a block gives are left out at random (Srivastava et al. 2014).

Each number of a mixer's or a feed-forward's output is 0 with a chance, and the others are larger by as much, before the
output is added to the residual stream (Vaswani et al. 2017, section 5.4). Which ones is a function of the seed and the
step, so that a run resumes to the same bits. A teacher and validations leave nothing out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from t2r_export.model.block import Block
from t2r_export.model.transformer import Transformer

STREAM = 3  # of random numbers; start positions have another


@contextmanager
def dropped(student: Transformer, chance: float, seed: int, step: int, process: int = 0) -> Iterator[None]:
    """Inside, the parts of the student's blocks, and of its encoder's, leave out each number with this chance.

    Args:
        seed, step, process: what is left out is a function of these, and of the order of the parts.
    """
    if not chance:
        yield
        return
    generator = torch.Generator(student.embedding.weight.device)
    generator.manual_seed(int(np.random.SeedSequence((seed, step, process, STREAM)).generate_state(1)[0]))

    def leave_out(module: nn.Module, inputs: Any, output: Any) -> Any:
        y: Tensor = output[0] if isinstance(output, tuple) else output
        kept = torch.empty_like(y, dtype=torch.float32).bernoulli_(1 - chance, generator=generator)
        y = y * (kept / (1 - chance)).to(y.dtype)
        return (y, *output[1:]) if isinstance(output, tuple) else y

    blocks = [module for module in student.modules() if isinstance(module, Block)]
    parts = [part for block in blocks for part in block.parts]
    hooks = [part.register_forward_hook(leave_out) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
