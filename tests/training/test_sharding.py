"""Sharded stages: gradients, gathered and shared weights, refused settings; runs of several processes."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

import small
from runs import entry, records, stop_at
from t2r_export.batches.batch import Batch
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_export.training import muon, sharding
from t2r_export.training.centering import center
from t2r_export.training.memory import narrow
from t2r_export.training.optimizers import make_optimizer, restore
from t2r_export.training.stages import Distill, Stage, Task
from t2r_runtime.errors import UserError

# a loss on weights, weights read for a source, a balance of activations, repeated layers, borrowed attention
NAMES = ("span", "translator_merged", "moe", "repeats", "shared_weights", "hybrid")

# Small rates: Adam's first step is the sign of a gradient, and near zero the summation order of two processes decides
# the sign. Align's rate is too high: both runs must discard its result.
SMALL_RATES = parse_plan("transfer,align,distill,task", "7,5,28,10", "1e-3,9,1e-3,1e-3")

# --multi_gpu starts the processes; the program detects that there is no GPU. Port 0 is any free one.
TWO_PROCESSES = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
TWO_PROCESSES += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
TWO_SHARDS = (*("--use_fsdp" if word == "--multi_gpu" else word for word in TWO_PROCESSES), "--fsdp_version", "2")

# program of each process: runs a config; at step `interrupted`, if not 0, one process is interrupted
PROGRAM = """
import os, pickle, signal, sys
import torch
from t2r_export.batches.windows import WindowBatches
from t2r_export.finetune import finetune
from t2r_export.training import muon

with open(sys.argv[1], "rb") as file:
    config, interrupted = pickle.load(file)
batch_of = WindowBatches.__call__

def batch(self, asked):
    if asked == interrupted and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGINT)
    return batch_of(self, asked)

if interrupted:
    WindowBatches.__call__ = batch
muon.fast_dtype = lambda device: torch.float32  # bfloat16 would make more of the rounding of sums in another order
finetune(config)
"""


def run_in_two_processes(
    config: FinetuneConfig, how: Sequence[str] = TWO_PROCESSES, interrupted: int = 0
) -> subprocess.CompletedProcess[str]:
    script, given = config.output.with_suffix(".py"), config.output.with_suffix(".pickle")
    script.write_text(PROGRAM)
    given.write_bytes(pickle.dumps((config, interrupted)))
    command = [sys.executable, *how, str(script), str(given)]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))


@pytest.fixture
def alone() -> Iterator[Any]:
    """A group of one process, which also fails on a sharded weight that is read without gathering."""
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
    maps = {name: p for name, p in stage.trainable().items() if ".maps." in name and p.ndim == 3}
    means = {name.removesuffix(".weight"): 5 * p.detach().mean(2) for name, p in maps.items()}

    def opened(each: Stage) -> Any:
        optimizer = make_optimizer(each.trainable(), 0.01, 0.1, kind)
        center(optimizer, each.trainable(), means)
        return optimizer

    assert len(means) >= 2
    optimizers = {each: opened(each) for each in (stage, shards)}
    for _ in range(2):
        for each, optimizer in optimizers.items():
            each(given).backward()
            optimizer.step()
            optimizer.zero_grad()
        state = sharding.whole_state(optimizers[shards].state_dict(), keep=True)
        optimizers[shards] = opened(shards)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, near, optimizer, interrupted",
    [
        # Two processes sum gradients in another order, and optimizers amplify it: without AVX-512 up to 2.4e-4 in the
        # last stage
        (TWO_PROCESSES, {"rel": 1e-3}, "adamw", 0),
        (TWO_SHARDS, {"rel": 1e-3}, "adamw", 25),
        (TWO_SHARDS, {"rel": 1e-3}, "muon", 0),
    ],
)
def test_two_processes_have_the_losses_of_one(
    how: Sequence[str],
    near: dict[str, float],
    optimizer: str,
    interrupted: int,
    config: FinetuneConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes resume a run of one, and one resumes theirs."""
    monkeypatch.setattr(muon, "fast_dtype", lambda device: torch.float32)
    recomputes = how is TWO_SHARDS and not interrupted
    config = dataclasses.replace(config, plan=SMALL_RATES, accumulate=2, optimizer=optimizer, recompute=recomputes)
    alone = dataclasses.replace(config, output=config.output.with_name("alone.pt"))
    expected = finetune(alone)
    stop_at(config, 4)
    config = dataclasses.replace(config, resume=True)
    done = run_in_two_processes(config, how, interrupted)
    if interrupted:
        assert "stopped after step 20 of distill; continue with --resume" in done.stderr
        finetune(config)
    else:
        assert done.returncode == 0, done.stderr
    said = entry(config)
    assert said["evaluation"]["finetuned"] == pytest.approx(expected.after.nats, **near)
    assert said["kept_steps"] == [kept.step for kept in expected.kept]
    assert said["kept_steps"][1] == 0
    assert said["tokens"] == expected.tokens
    logs = (records(config), records(alone))
    found, losses = ({(line["stage"], line["step"]): line["loss"] for line in log if "loss" in line} for log in logs)
    compared = [place for place in losses if place[0] != "align"]
    assert len(compared) >= 9
    for place in compared:
        assert found[place] == pytest.approx(losses[place], **near), place


@pytest.mark.slow
def test_indivisible_batch_is_refused(config: FinetuneConfig) -> None:
    done = run_in_two_processes(dataclasses.replace(config, batch=3))
    assert done.returncode != 0
    assert "a batch size divisible by the 2 processes; received 3" in done.stderr
