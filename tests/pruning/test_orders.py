"""The order in which units are removed: column pivoting against its definition, gradients against differences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import small
from t2r_export.batches.batch import window_batches
from t2r_export.model.units import Units
from t2r_export.pruning.orders import by_columns, by_gradient
from t2r_export.pruning.parts import channel_order
from t2r_export.pruning.watch import features


def pivoted(A: np.ndarray, groups: list[list[int]]) -> list[int]:
    """QR with column pivoting: next is the group of columns of A (N, K) farthest from the span of the chosen ones."""
    order: list[int] = []
    while len(order) < len(groups):
        basis = np.zeros((len(A), 0))
        if order:
            U, s, _ = np.linalg.svd(A[:, [column for group in order for column in groups[group]]], full_matrices=False)
            basis = U[:, s > 1e-9 * s.max()]
        rest = A - basis @ (basis.T @ A)
        lengths = [-1.0 if g in order else (rest[:, columns] ** 2).sum() for g, columns in enumerate(groups)]
        order.append(int(np.argmax(lengths)))
    return order


@given(st.integers(0, 10**6), st.integers(2, 7), st.sampled_from([1, 2]), st.integers(1, 3))
def test_columns_in_the_order_of_qr_with_pivoting(seed: int, units: int, width: int, heads: int) -> None:
    K, draw = units * width, np.random.default_rng(seed)
    matrices = draw.normal(size=(heads, 3 * K, K)) * draw.uniform(0.2, 3.0, K)
    columns = np.arange(units)[:, None] + units * np.arange(width)
    found = by_columns(torch.from_numpy(matrices.transpose(0, 2, 1) @ matrices), torch.from_numpy(columns))
    wide = np.zeros((heads * 3 * K, heads * K))  # each head has its own columns and rows
    for head, A in enumerate(matrices):
        wide[head * 3 * K : (head + 1) * 3 * K, head * K : (head + 1) * K] = A
    groups = [[head * K + column for head in range(heads) for column in columns[unit]] for unit in range(units)]
    assert found.tolist() == pivoted(wide, groups)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_chosen_columns_span_what_has_their_rank(seed: int, rank: int, more: int) -> None:
    draw = np.random.default_rng(seed)
    A = draw.normal(size=(20, rank)) @ draw.normal(size=(rank, rank + more))
    order = by_columns(torch.from_numpy(A.T @ A)[None], torch.arange(rank + more)[:, None])
    kept = A[:, order[:rank].tolist()]
    assert np.abs(kept @ np.linalg.lstsq(kept, A, rcond=None)[0] - A).max() <= 1e-6 * np.abs(A).max()


def test_dead_channels_go_first() -> None:
    model = small.model(small.with_layers(small.LLAMA, small.linear(5), small.linear(6, positions="after")))
    dead = {0: [1, 3], 1: [2]}  # two channels of the first layer, a pair of the second
    for layer, channels in dead.items():
        maps = model.blocks[layer].parts[0].inner.maps  # type: ignore[attr-defined]
        for phi in (maps.q, maps.k):
            every = [channel + shift for channel in channels for shift in ((0, 3) if layer else (0,))]
            for weight in (phi.weight, phi.bias):
                weight.data[..., every] = 0.0
    grams = features(model, small.ids(), [(0, 0), (1, 0)])
    for layer, channels in dead.items():
        units = model.blocks[layer].parts[0].units("state")
        assert isinstance(units, Units)
        last = channel_order(grams[layer, 0], units)[:, -len(channels) :]
        assert [sorted(row) for row in (last % units.size).tolist()] == [channels] * units.groups


@pytest.mark.parametrize("kind, number", [("heads", 0), ("ffn", 1)])
def test_gradient_is_that_of_a_factor(kind: str, number: int) -> None:
    model = small.model(dataclasses.replace(small.LLAMA, layers=(small.SOFTMAX,) * 2)).double()
    windows = small.ids(3, 8)
    part = model.blocks[1].parts[number]
    units = part.units(kind)
    assert isinstance(units, Units)
    weight = part.get_parameter(units.reads)
    (found,) = by_gradient(model, window_batches(windows, 2), [(weight, units)])
    assert all(other.grad is None for other in model.parameters())
    owners = units.rows[units.reads].owners
    for unit in range(units.count):
        slopes = torch.zeros(3, dtype=torch.float64)
        for sign in (1, -1):
            own, step = weight.data.clone(), 1e-5
            weight.data[:, owners == unit] *= 1 + sign * step
            logits = model(windows[:, :-1]).detach()
            slopes += sign * F.cross_entropy(logits.mT, windows[:, 1:], reduction="none").mean(1) / (2 * step)
            weight.data.copy_(own)
        assert found[unit] == pytest.approx(float(slopes.abs().sum()), rel=1e-4, abs=1e-7)
