"""Dropout on mixer and feed-forward outputs before the residual sum (Srivastava et al. 2014).

Placement as in Vaswani et al. 2017, section 5.4. The mask is a function of seed and step, so a resumed run is
bit-identical. Teachers and validations use no dropout.
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

STREAM = 3  # random stream; start positions use another


@contextmanager
def dropped(student: Transformer, chance: float, seed: int, step: int, process: int = 0) -> Iterator[None]:
    """Context in which all parts of decoder and encoder blocks apply dropout with probability `chance`.

    The masks are a function of `seed`, `step`, `process` and the order of the parts.
    """
    if not chance:
        yield
        return
    generator = torch.Generator(student.embedding.weight.device)
    generator.manual_seed(int(np.random.SeedSequence((seed, step, process, STREAM)).generate_state(1)[0]))

    def leave_out(module: nn.Module, inputs: Any, output: Any) -> Any:
        y: Tensor = output[0] if isinstance(output, tuple) else output
        y = torch.where(kept_places(y, chance, generator), y / (1 - chance), 0)
        return (y, *output[1:]) if isinstance(output, tuple) else y

    blocks = [module for module in student.modules() if isinstance(module, Block)]
    parts = [part for block in blocks for part in block.parts]
    hooks = [part.register_forward_hook(leave_out) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def kept_places(y: Tensor, chance: float, generator: torch.Generator) -> Tensor:
    """Draw the dropout mask of `y`, 16 bits per entry: one draw for four entries; `bernoulli_` needs four.

    Returns:
        Boolean tensor of y's shape, False with probability `chance` rounded to a multiple of 2^-16.
    """
    draws = torch.empty(-(-y.numel() // 4), dtype=torch.int64, device=y.device)
    draws.random_(-(2**63), None, generator=generator)
    return draws.view(torch.int16)[: y.numel()].view(y.shape) >= round(chance * 2**16) - 2**15
