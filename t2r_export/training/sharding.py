"""Sharded training: each process holds a share of weights, gradients and optimizer state (FSDP2).

Zhao et al. 2023, arXiv 2304.11277, by torch.distributed.fsdp.fully_shard: tensors are split along the first axis, and a
part's weights are gathered while it computes. Enabled by Accelerate's launcher (`--use_fsdp --fsdp_version 2`), which
itself would shard only on GPUs.

A copy of the stage is sharded. The unsharded stage stays in main memory for everything but steps: validation, saving,
the end of a stage.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from t2r_export.model.block import Block
from t2r_export.model.parts.base import Part
from t2r_runtime.errors import UserError

if TYPE_CHECKING:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    from t2r_export.training.stages import Stage


def chosen(accelerator: Accelerator) -> FullyShardedDataParallelPlugin | None:
    """Sharding options of the launcher; None without sharding.

    Raises:
        UserError: FSDP of version 1, or an unsupported setting.
    """
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils import parse_flag_from_env
    from torch.distributed.fsdp import CPUOffloadPolicy

    if accelerator.num_processes == 1 or not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return None
    plugin = FullyShardedDataParallelPlugin()
    if plugin.fsdp_version != 2:
        raise UserError("FSDP of version 2", f"version {plugin.fsdp_version}", "launch with --fsdp_version 2")
    refused = {
        "offload_params": isinstance(plugin.cpu_offload, CPUOffloadPolicy),
        "activation_checkpointing": plugin.activation_checkpointing,
    }
    for name in (name for name, is_set in refused.items() if is_set):
        raise UserError(f"--fsdp_{name} false", "true", "launch without it")
    return plugin


def sharded(stage: Stage, plugin: FullyShardedDataParallelPlugin, accelerator: Accelerator) -> Stage:
    """A copy of a stage, sharded over all processes. Frozen weights, such as a teacher's, are sharded too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # outputs of parts are views, but never modified in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    stage = copy.deepcopy(stage)
    for part in _units(stage):
        fully_shard(part, mesh=mesh, reshard_after_forward=plugin.reshard_after_forward)
    fully_shard(stage, mesh=mesh)
    return stage


def _units(stage: Stage) -> Iterator[Part]:
    """Parts whose weights are read only in their own call. Other weights stay gathered during the stage's forward."""
    parts = [part for block in stage.modules() if isinstance(block, Block) for part in block.parts]
    return (part for part in parts if not part.config.reads_source and not part.penalty().requires_grad)


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor in every process; other tensors are unchanged. All processes must call it."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's shard of an unsharded tensor, if `like` is sharded."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def gather(shards: Stage, stage: Stage) -> None:
    """Copy the student's weights from a sharded stage to the unsharded one, in every process."""
    weights = stage.student.state_dict()
    for name, weight in shards.student.state_dict().items():
        weights[name].copy_(whole(weight))


@torch.no_grad()
def scatter(stage: Stage, shards: Stage) -> None:
    """Copy the student's weights from the unsharded stage to this process's shards."""
    weights = stage.student.state_dict()
    for name, weight in shards.student.state_dict().items():
        weight.copy_(share(weights[name], weight))


def whole_state(state: dict[str, Any], keep: bool) -> dict[str, Any]:
    """An optimizer's `state_dict` with gathered tensors; with None in their place unless `keep`."""
    found: dict[str, Any] = tree_map(lambda x: _kept(x, keep) if isinstance(x, Tensor) else x, state)
    return found


def _kept(tensor: Tensor, keep: bool) -> Tensor | None:
    tensor = whole(tensor)
    return tensor.cpu() if keep else None
