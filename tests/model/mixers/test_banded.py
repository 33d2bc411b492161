"""Shared by mixers with bounded look-back: buffers, empty slots, and bands over chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from small import B, G, H, V
from t2r_export.model.mixers.banded import CHUNK, MASKED, Band, append, attend, empty_slot_mask, weighted
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps

windows = pytest.mark.parametrize("window", [1, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])


def numbers(heads: int, length: int, size: int = V, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, heads, length, size, generator=generator, dtype=torch.float64)


def test_append() -> None:
    ops, buffer, new = TorchOps(), torch.arange(6.0).view(1, 1, 3, 2), torch.full((1, 1, 1, 2), 9.0)
    evicted, after = append(buffer, new, ops)
    assert (evicted.flatten().tolist(), after.flatten().tolist()) == ([0, 1], [2, 3, 4, 5, 9, 9])
    evicted, after = append(buffer[:, :, :1], new, ops)
    assert (evicted.flatten().tolist(), after.flatten().tolist()) == ([0, 1], [9, 9])


def test_empty_slots() -> None:
    valid_from = torch.tensor([0.0, 2, 3, 40])
    assert empty_slot_mask(valid_from, torch.tensor(2.0), TorchOps()).tolist() == [0, 0, 1, 1]
    assert empty_slot_mask(2.0, torch.tensor([0.0, 1, 2, 7]), TorchOps()).tolist() == [1, 1, 0, 0]
    assert torch.tensor(MASKED).half().isfinite()
    assert torch.tensor(MASKED).half().exp() == 0


@windows
@pytest.mark.parametrize("length", [1, 2, 31, 32, 70])
def test_chunk_visibility(window: int, length: int) -> None:
    """Column j of chunk n is token n·C + j - J·C of the text, a buffered token before it, and zero elsewhere."""
    band, past, new = Band(window), numbers(G, window), numbers(G, length, seed=1)
    keys = band.keys(past, new, TorchOps(length))
    assert keys.shape == (B, G, -(-length // band.chunk), band.length, V)
    joined = torch.cat([past, new], 2)
    for n, j in np.ndindex(*keys.shape[2:4]):
        token = n * band.chunk + j - band.before * band.chunk
        expected = joined[:, :, token + window] if -window <= token < length else torch.zeros(B, G, V).double()
        assert torch.equal(keys[:, :, n, j], expected), (n, j)


@windows
@pytest.mark.parametrize("kv_heads", [H, G, 1])
def test_outputs_are_the_inverse_of_queries(window: int, kv_heads: int) -> None:
    band, ops, q = Band(window), TorchOps(41), numbers(H, 41)
    rows = band.queries(q, kv_heads, ops)
    R, chunks = H // kv_heads, -(-41 // band.chunk)
    assert rows.shape == (B, kv_heads, chunks, R * band.chunk, V)
    assert torch.equal(band.outputs(rows, H, ops), q)
    for h, t in np.ndindex(H, 41):
        row = h % R * band.chunk + t % band.chunk
        assert torch.equal(rows[:, h // R, t // band.chunk, row], q[:, h, t]), (h, t)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 4), st.lists(st.integers(0, 50), min_size=1, max_size=3))
def test_the_bias_hides_what_no_query_sees(window: int, length: int, first: int, start: list[int]) -> None:
    band = Band(window)
    step = Step(TorchOps(length), torch.tensor(start, dtype=torch.int32), [])
    bias = band.bias(step, first, per_group=2)
    chunks = -(-length // band.chunk)
    assert bias.shape == (len(start), 1, chunks, 2 * band.chunk, band.length)
    for b, n, row in np.ndindex(len(start), chunks, 2 * band.chunk):
        place = n * band.chunk + row % band.chunk
        if place < length:
            tokens = start[b] + n * band.chunk + np.arange(band.length) - band.before * band.chunk
            own = start[b] + place
            seen = (tokens <= own) & (tokens > own - window) & (tokens >= first)
            np.testing.assert_array_equal(bias[b, 0, n, row].numpy() > MASKED / 2, seen)
            assert not bias[b, 0, n, row][torch.from_numpy(seen)].any()


def test_the_bias_is_computed_once() -> None:
    step = Step(TorchOps(9), torch.zeros(B, dtype=torch.int32), [])
    bias = Band(4).bias(step, 2, 3)
    assert Band(4).bias(step, 2, 3) is bias
    assert all(other is not bias for other in (Band(5).bias(step, 2, 3), Band(4).bias(step, 1, 3)))


def test_memory_is_linear_in_the_length() -> None:
    for window in (8, 3 * CHUNK):
        band = Band(window)
        bands = [band.keys(numbers(1, window), numbers(1, T), TorchOps(T)).numel() for T in (128, 256)]
        assert bands == [T // band.chunk * band.length * B * V for T in (128, 256)]


def test_weights_over_parts_are_one_softmax() -> None:
    ops, q = TorchOps(), numbers(G, 2)
    keys, values = [numbers(G, n, seed=n) for n in (3, 5)], [numbers(G, n, seed=10 + n) for n in (3, 5)]
    whole, scores, weights = attend(q, torch.cat(keys, 2), torch.cat(values, 2), ops)
    y, found = weighted(list(scores.split([3, 5], dim=-1)), values, ops)
    torch.testing.assert_close(weights, scores.softmax(-1))
    torch.testing.assert_close(found, weights)
    torch.testing.assert_close(y, whole)
    torch.testing.assert_close(weighted([scores], values, ops)[0], whole)
    hidden = torch.tensor([0.0] * 3 + [MASKED] * 5)
    near, _, _ = attend(q, torch.cat(keys, 2), torch.cat(values, 2), ops, hidden)
    torch.testing.assert_close(near, attend(q, keys[0], values[0], ops)[0])
