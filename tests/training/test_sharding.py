"""Sharded stages: the gradients of whole ones, what is gathered and shared, and which settings are refused."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

import small
from t2r_export.data.batch import Batch
from t2r_export.training import sharding
from t2r_export.training.memory import narrow
from t2r_export.training.optimizers import make_optimizer, restore
from t2r_export.training.stages import Distill, Stage, Task
from t2r_runtime.errors import UserError

# a loss of weights, weights read for a source, a balance of activations, layers that run twice, borrowed attention
NAMES = ("span", "translator_merged", "moe", "repeats", "shared_weights", "hybrid")


@pytest.fixture
def alone() -> Iterator[Any]:
    """A group of one process: a sharded weight that is read where it is not gathered is an error there too."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield SimpleNamespace(device=torch.device("cpu"), num_processes=1)
    torch.distributed.destroy_process_group()


def sharded(stage: Stage, accelerator: Any) -> Stage:
    plugin: Any = SimpleNamespace(reshard_after_forward=True)
    return sharding.sharded(stage, plugin, accelerator)


def batch(stage: Stage) -> Batch:
    ids = small.ids()
    source = () if stage.student.encoder is None else small.sources()
    return Batch(ids[:, :-1], ids[:, 1:], None, *source)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_whole_stages(name: str, alone: Any) -> None:
    stage = Task(small.model(name), None)
    shards = sharded(stage, alone)
    given = batch(stage)
    losses = [float(each(given).detach()) for each in (stage, shards)]
    for each in (stage, shards):
        each(given).backward()
    assert losses[0] == losses[1]
    found = dict(shards.named_parameters())
    for place, parameter in stage.named_parameters():
        if parameter.grad is None:
            assert found[place].grad is None
        else:
            gradient = found[place].grad
            assert gradient is not None
            torch.testing.assert_close(sharding.whole(gradient), parameter.grad, rtol=1e-4, atol=1e-7)


def test_bfloat16_teachers_are_sharded(alone: Any) -> None:
    teacher, student = small.model("softmax"), small.model("rotary_keep", seed=1)
    narrow(teacher)
    stage = Distill(student, teacher)
    shards, given = sharded(stage, alone), batch(stage)
    losses = []
    for each in (stage, shards):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            loss = each(given)
        loss.backward()
        losses.append(float(loss.detach()))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_steps_and_states_are_those_of_whole_stages(kind: str, alone: Any) -> None:
    stage = Task(small.model("hybrid"), None)
    shards, given = sharded(stage, alone), batch(stage)
    optimizers = {each: make_optimizer(each.trainable(), 0.01, 0.1, kind) for each in (stage, shards)}
    for _ in range(2):
        for each, optimizer in optimizers.items():
            each(given).backward()
            optimizer.step()
            optimizer.zero_grad()
        state = sharding.whole_state(optimizers[shards].state_dict(), keep=True)
        optimizers[shards] = make_optimizer(shards.trainable(), 0.01, 0.1, kind)
        restore(optimizers[shards], state)
    assert any(isinstance(x, torch.Tensor) for x in torch.utils._pytree.tree_leaves(state))
    assert not any(type(x).__name__ == "DTensor" for x in torch.utils._pytree.tree_leaves(state))
    received = Task(small.model("hybrid", seed=1), None)
    sharding.gather(shards, received)
    for name, weight in stage.student.state_dict().items():
        torch.testing.assert_close(received.student.state_dict()[name], weight, rtol=1e-4, atol=1e-5)


def test_other_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator: Any = SimpleNamespace(num_processes=2)
    assert sharding.chosen(accelerator) is None
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert sharding.chosen(accelerator) is not None
    assert sharding.chosen(SimpleNamespace(num_processes=1)) is None  # type: ignore[arg-type]
    for name in ("offload_params", "activation_checkpointing"):
        with monkeypatch.context() as patch:
            patch.setenv(f"FSDP_{name.upper()}", "true")
            with pytest.raises(UserError, match=f"--fsdp_{name} false; received true"):
                sharding.chosen(accelerator)
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(UserError, match="FSDP of version 2; received version 1"):
        sharding.chosen(accelerator)
