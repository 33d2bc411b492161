"""Freed memory is reused during training and returned afterwards."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import small
import texts
from t2r_export.batches.batch import window_batch
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.finetune import finetune
from t2r_export.model.transformer import Transformer
from t2r_export.training import memory
from t2r_export.training.measured import Measured
from t2r_export.training.memory import narrow, recompute
from t2r_export.training.stages import Task
from t2r_runtime import glibc
from t2r_runtime.errors import UserError

PROGRAM = """
import os, resource, sys, torch
from t2r_export.training.memory import freed_memory_kept
from t2r_runtime import glibc

if not glibc.choose({}):
    sys.exit("no glibc")
NUMBERS = 9 << 20  # 36 MiB, above what glibc keeps by itself


def faults():
    for _ in range(40):  # until every place that tensors get was used once
        torch.ones(NUMBERS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(NUMBERS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


usual = faults()
with freed_memory_kept():
    kept = faults()
    held = resident()
print(usual, kept, (held - resident()) / (4 * NUMBERS))
"""


@pytest.mark.slow
def test_freed_memory_is_reused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if done.stderr == "no glibc\n":
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    usual, kept, given_back = map(float, done.stdout.split())
    assert usual > 100 and kept < usual / 10
    assert given_back > 0.9  # in tensors, at the end; Linux counts pages with a delay


def test_memory_that_has_grown_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a step that needs 10, beyond 20; then one that needs 14, beyond 28; then one that needs 9, beyond 18."""
    resident = iter([10, 15, 20, 21, 14, 28, 29, 9, 18, 19])
    returned: list[bool] = []
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(resident))
    monkeypatch.setattr(glibc, "trim", lambda: returned.append(True))
    kept, counts = memory.KeptMemory(), []
    for _ in range(10):
        kept.after_step()
        counts.append(len(returned))
    assert counts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the resident memory")
def test_resident_memory() -> None:
    before = memory.resident_bytes()
    numbers = torch.ones(4 << 20)
    assert memory.resident_bytes() - before > 0.9 * numbers.nbytes


def test_every_step_may_return_memory(config: FinetuneConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(memory.KeptMemory, "after_step", lambda self: steps.append(1))
    finetune(dataclasses.replace(config, plan=parse_plan("task", "3", "0.01")))
    assert len(steps) == 3


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # from norms inside layers under autocast
@pytest.mark.parametrize("name", small.CONFIGS)
def test_a_narrow_model_is_what_autocast_computes(name: str) -> None:
    model, ids = small.model(name), small.ids()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wide = model(ids)
        narrow(model)
        assert torch.equal(model(ids), wide)
    products = (module for module in model.blocks.modules() if isinstance(module, torch.nn.Linear))
    assert {module.weight.dtype for module in products} <= {torch.bfloat16}
    assert model.embedding.weight.dtype == torch.float32


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the files that a process has mapped")
def test_a_narrow_model_does_not_hold_its_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    checkpoint.save(path, small.model(), None, {})
    model = checkpoint.load(path).model
    for held in (True, False):
        assert (str(path) in Path("/proc/self/maps").read_text()) == held
        narrow(model)
        gc.collect()


def gradients(model: Transformer, recomputes: bool, bf16: bool) -> list[torch.Tensor]:
    """Loss and gradients for a window."""
    stage = Task(model, None)
    recompute(model, recomputes)
    stage.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, bf16, cache_enabled=False):
        if model.encoder is None:
            loss = stage(window_batch(small.ids(length=small.T + 1)))
        else:
            states = model.start(*small.sources())
            loss = model(small.ids(), states).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("name", [*small.MODELS, *small.TRANSLATORS])
def test_recomputed_values_are_the_same(name: str) -> None:
    model = small.model({**small.MODELS, **small.TRANSLATORS}[name])
    for bf16 in (False, True):
        kept, anew = (gradients(model, recomputes, bf16) for recomputes in (False, True))
        assert len(kept) == len(anew) > 2
        for one, other in zip(kept, anew, strict=True):
            assert torch.equal(one, other)


def live(recomputes: bool) -> int:
    """Bytes of tensors that a forward pass keeps for the backward pass."""
    model = small.model(dataclasses.replace(texts.TEACHER, layers=(small.LINEAR,) * 9))
    recompute(model, recomputes)
    with Measured() as measured:
        loss = model(small.ids(small.B, 64, vocabulary=texts.TEACHER.vocab_size)).sum()
        found = measured.now
    assert loss.requires_grad
    return found


def test_recomputed_values_are_not_kept() -> None:
    kept, anew = (live(recomputes) for recomputes in (False, True))
    assert anew < kept / 3


def test_redrawn_maps_are_not_recomputed() -> None:
    config = small.with_layers(small.PLAIN, small.linear(feature_map="favor", redraw=True))
    with pytest.raises(UserError, match="reproducible values for recompute; received feature maps"):
        recompute(small.model(config), True)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_recomputed_run_is_the_same(config: FinetuneConfig, tmp_path: Path, precision: str) -> None:
    config = dataclasses.replace(config, plan=parse_plan("align,distill,task", "3,4,2", "0.01"), precision=precision)
    anew = dataclasses.replace(config, output=tmp_path / "anew.pt", recompute=True)
    for each in (config, anew):
        finetune(each)
    assert config.output.read_bytes() == anew.output.read_bytes()
    with pytest.raises(UserError, match=r"no --loss dropout \(whose masks .*\) with --optimizer recompute"):
        dataclasses.replace(anew, dropout=0.1)
