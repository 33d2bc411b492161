"""Window dropout: training in which hybrid layers now and then do without their window.

A student learns to lean on the window, which is its teacher's own softmax, and leaves what is far unused (component
imbalance, arXiv 2510.05901). So in the steps of a stage some rows of a batch have their window left out, in each layer
others, wherever there is something far: a share that falls to none until the stage ends. Validations leave nothing out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor

from t2r_export.config.finetune import FinetuneConfig, StagePlan
from t2r_export.model.mixers.hybrid import HybridMixer
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

STREAM = 2  # of random numbers; start positions have another


def share_left_out(first: float, step: int, steps: int) -> float:
    """The share of rows in a stage's step from 0: `first` before the first one, none in the last."""
    return first * (1 - (step + 1) / steps)


def draw_rows(share: float, layers: int, batch: int, seed: int, step: int) -> Tensor:
    """Whose window is left out in which hybrid layer, (layers, batch) bool: a function of the seed and the step."""
    random = np.random.default_rng((seed, step, STREAM))
    return torch.from_numpy(random.random((layers, batch)) < share)


def hybrids(student: Transformer) -> list[HybridMixer]:
    """What is inside the student's hybrid layers, in their order."""
    return [module for module in student.modules() if isinstance(module, HybridMixer)]


def check_window_dropout(share: float, student: Transformer) -> None:
    """Raise UserError where windows are to be left out of a student that has none beside something else."""
    if share and not hybrids(student):
        kinds = ", ".join(dict.fromkeys(part.label for layer in student.config.layers for part in layer.mixers))
        raise UserError("a student with hybrid layers, for window dropout", kinds, "leave window dropout out")


@contextmanager
def left_out(student: Transformer, rows: Tensor) -> Iterator[None]:
    """Inside, these rows (layers, B) of a batch have no window where something is far."""
    mixers = hybrids(student)
    try:
        for mixer, of_layer in zip(mixers, rows, strict=True):
            mixer.left_out = of_layer.to(student.embedding.weight).view(-1, 1, 1, 1)
        yield
    finally:
        for mixer in mixers:
            mixer.left_out = None


def windows_left_out(
    student: Transformer, config: FinetuneConfig, plan: StagePlan, step: int, before: int, batch: int, mine: slice
) -> AbstractContextManager[None]:
    """`left_out` for a step of a stage, with so many steps before it: a process's rows of a batch."""
    if not config.window_dropout:
        return nullcontext()
    share = share_left_out(config.window_dropout, step, plan.steps)
    rows = draw_rows(share, len(hybrids(student)), batch, config.seed, before + step)
    return left_out(student, rows[:, mine])
