"""Every mixer of the recall table has a model for its sizes."""

from __future__ import annotations

import pytest
import torch

from recall import ENTRIES, TASKS, fitting, state_bytes

LENGTH = 2 * TASKS["mqar"][1]
TOO_LARGE = {"lstm", "gru"}  # at a state size of 16 KB


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.grows])
def test_largest_fitting_state(name: str) -> None:
    found = {kb: fitting(ENTRIES[name], 1024 * kb, LENGTH) for kb in (4, 16)}
    sizes = {kb: state_bytes(config, LENGTH) for kb, config in found.items() if config is not None}
    assert (16 in sizes) is (name not in TOO_LARGE)
    assert all(0.5 * 1024 * kb < size <= 1024 * kb for kb, size in sizes.items()), sizes


def test_tasks_are_solvable() -> None:
    generator = torch.Generator().manual_seed(0)
    for make, size in TASKS.values():
        ids, answers = make(size, generator)
        assert ids.shape == answers.shape == (32, 2 * size)
        assert (answers[:, size:] >= 0).all() and (answers[:, :size] < 0).all()
