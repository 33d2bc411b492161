"""Estimate memory, operations and time of a run from one step of each stage on a few rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from t2r_export.batches.batch import Batch, Batches
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.model.transformer import Transformer
from t2r_export.training import lora
from t2r_export.training.losses import rows_at_once
from t2r_export.training.measured import Measured
from t2r_export.training.memory import narrow
from t2r_export.training.optimizers import make_optimizer
from t2r_export.training.stages import Stage
from t2r_export.training.trainer import check_stages, open_stage, precision, uses_bf16


@dataclass(frozen=True)
class StagePlanned:
    """Estimated needs of a stage."""

    stage: str
    steps: int
    tokens: int  # predicted in all steps
    trained: int  # number of trained parameters
    memory: dict[str, int]  # bytes of tensors by part, at the peak
    flops: int  # floating-point operations of all steps
    seconds: float  # of all steps on this device, from the time of one on a few rows

    @property
    def bytes(self) -> int:
        return sum(self.memory.values())

    def hours(self, teraflops: float) -> float:
        """Hours at `teraflops` · 10¹² operations per second."""
        return self.flops / (teraflops * 1e12) / 3600


def planned(
    config: FinetuneConfig, student: Transformer, teacher: Transformer | None, batches: Batches
) -> list[StagePlanned]:
    """Estimated needs of every stage on one device. Trains `student` for one step per stage.

    Runs at most twice `rows_at_once` rows and extrapolates linearly to larger batches.
    """
    if teacher is not None and uses_bf16(config, student.embedding.weight.device):
        narrow(teacher)
    check_stages(config, student, teacher)
    found, before = [], 0
    for plan in (plan for plan in config.plan if plan.steps):
        stage = open_stage(config, plan, student, teacher)
        batch = batches(before).to(stage.device)
        trainable = stage.trainable()
        optimizer = make_optimizer(trainable, 0.0, config.weight_decay, config.optimizer)
        part = batch.split(-(-len(batch) // config.accumulate))[0]
        least = -(-rows_at_once(student.config.vocab_size) // part.ids.shape[1])
        sizes = sorted({min(len(part), size) for size in (least, 2 * least)})
        steps = [_measured(stage, part.rows(slice(size)), config) for size in sizes]
        live = _at(len(part), sizes, [live for live, _ in steps])
        with Measured() as updating:
            optimizer.step()
        flops = _at(len(batch), sizes, [flops for _, flops in steps])
        seconds = _seconds(stage, part.rows(slice(sizes[-1])), config) * flops / steps[-1][1]
        optimizer.zero_grad()
        gradients = _bytes(trainable.values())
        memory = {
            "student": _bytes(student.parameters()),
            "teacher": 0 if teacher is None else _bytes(teacher.parameters()),
            "gradients": gradients,
            "optimizer": _bytes(tree_leaves(optimizer.state_dict())),
            "activations": live - gradients,
        }
        trained, tokens = sum(p.numel() for p in trainable.values()), plan.steps * batch.count
        flops = plan.steps * (flops + updating.flops)
        found.append(StagePlanned(plan.stage, plan.steps, tokens, trained, memory, flops, plan.steps * seconds))
        lora.merge(student)
        before += plan.steps
    return found


def _measured(stage: Stage, batch: Batch, config: FinetuneConfig) -> tuple[int, int]:
    """Peak bytes of gradients and activations, and operations, of forward and backward."""
    stage.zero_grad()
    accumulates = config.accumulate > 1
    with Measured() as measured:
        for _ in range(1 + accumulates):  # the second pass holds the gradients of the first
            with precision(config, stage.device):
                loss = stage(batch)
            loss.backward()
    return measured.peak, measured.flops // (1 + accumulates)


def _seconds(stage: Stage, batch: Batch, config: FinetuneConfig) -> float:
    """Time of forward and backward, after `_measured` has warmed up."""
    synchronize = torch.cuda.synchronize if stage.device.type == "cuda" else lambda: None
    synchronize()
    started = time.perf_counter()
    with precision(config, stage.device):
        loss = stage(batch)
    loss.backward()
    synchronize()
    return time.perf_counter() - started


def _at(rows: int, sizes: list[int], values: list[int]) -> int:
    """Linear extrapolation of the value to `rows` rows."""
    if len(sizes) == 1:
        return values[0] * rows // sizes[0]
    slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
    return round(values[0] + slope * (rows - sizes[0]))


def _bytes(values: Iterable[Any]) -> int:
    """Total bytes of the tensors in `values`."""
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
