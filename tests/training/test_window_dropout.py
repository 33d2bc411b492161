"""Hybrids trained without their window now and then: whose is left out, when, and what remains."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import small
from t2r_export.config.finetune import FinetuneConfig, parse_plan
from t2r_export.config.mixers import HybridConfig
from t2r_export.data.batch import window_batch
from t2r_export.model.transformer import Transformer
from t2r_export.training.stages import Task
from t2r_export.training.window_dropout import (
    check_window_dropout,
    draw_rows,
    hybrids,
    left_out,
    share_left_out,
    windows_left_out,
)
from t2r_runtime.errors import UserError

WINDOW = 4
MERGES = pytest.mark.parametrize("merge", HybridConfig.MERGES)


def student(merge: str = "sum") -> Transformer:
    return small.model(small.with_layers(small.LLAMA, *[HybridConfig(WINDOW, small.K, merge=merge)] * 2))


def test_the_share_falls_to_none() -> None:
    shares = [share_left_out(0.5, step, 100) for step in range(100)]
    assert shares[0] == pytest.approx(0.495)
    assert shares[49] == pytest.approx(0.25)
    assert all(a > b for a, b in zip(shares, shares[1:], strict=False))
    assert shares[-1] == share_left_out(1.0, 0, 1) == 0


def test_rows_are_a_function_of_seed_and_step() -> None:
    drawn = torch.stack([draw_rows(0.3, 5, 40, 0, step) for step in range(50)])
    assert drawn.dtype == torch.bool and drawn.shape == (50, 5, 40)
    assert float(drawn.float().mean()) == pytest.approx(0.3, abs=0.02)
    assert torch.equal(draw_rows(0.3, 5, 40, 0, 7), drawn[7])
    assert not torch.equal(draw_rows(0.3, 5, 40, 1, 7), drawn[7])
    assert not torch.equal(drawn[7, 0], drawn[7, 1])
    assert not draw_rows(0.0, 5, 40, 0, 7).any()


@MERGES
def test_without_its_window_a_layer_still_learns_what_is_far(merge: str) -> None:
    made, windows = student(merge), small.ids(length=12)
    with left_out(made, torch.ones(2, len(windows), dtype=torch.bool)):
        Task(made, None)(window_batch(windows)).backward()
    for mixer in hybrids(made):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in mixer.maps.parameters())
        assert mixer.left_out is None


def test_a_step_of_a_run_leaves_out_its_own_rows() -> None:
    made, plan = student(), parse_plan("task", "10")[0]
    config = FinetuneConfig(model=Path("m"), output=Path("o"), data=(), plan=(plan,), window_dropout=1.0)
    expected = draw_rows(share_left_out(1.0, 4, 10), 2, 6, 0, 34)
    with windows_left_out(made, config, plan, 4, 30, 6, slice(1, None, 2)):
        rows = torch.stack([mixer.left_out.flatten() for mixer in hybrids(made)])
    assert torch.equal(rows.bool(), expected[:, 1::2])
    assert expected.any() and not expected.all()
    with windows_left_out(made, dataclasses.replace(config, window_dropout=0.0), plan, 4, 30, 6, slice(None)):
        assert all(mixer.left_out is None for mixer in hybrids(made))


def test_who_has_no_window_to_leave_out() -> None:
    check_window_dropout(0.5, student())
    check_window_dropout(0.0, small.model("window"))
    with pytest.raises(UserError, match="a student with hybrid layers, for window dropout; received window; leave"):
        check_window_dropout(0.5, small.model("window"))
