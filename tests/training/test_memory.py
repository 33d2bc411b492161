"""Freed memory is reused during training and returned afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import small
from t2r_export.training.memory import narrow

PROGRAM = """
import os, resource, sys, torch
from t2r_export.training.memory import _glibc, freed_memory_kept

if _glibc() is None:
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
print(usual, kept, (held - resident()) // (4 * NUMBERS))
"""


def test_freed_memory_is_reused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if done.stderr == "no glibc\n":
        pytest.skip("the C library is not glibc")
    assert done.returncode == 0, done.stderr
    usual, kept, given_back = map(int, done.stdout.split())
    assert usual > 100 and kept < usual / 10
    assert given_back >= 1  # tensors' worth, at the end


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # of norms inside layers, by autocast too
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
