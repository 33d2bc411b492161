"""Keys and values of 8 bits: levels, the definition with rounded rows, gradients, and what `rounded_as` adopts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

import small
from model.mixers.alone import by_steps, empty, random_mixer, text
from model.mixers.test_softmax import START, setting
from model.mixers.test_softmax import by_definition as softmax_by_definition
from model.mixers.test_window import by_definition as window_by_definition
from small import GPT2, LLAMA, G, K
from t2r_export.config.mixers import HybridConfig, SoftmaxConfig, WindowConfig
from t2r_export.convert import convert
from t2r_export.model.mixers.rows import Rows
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.torch_primitives import rounded_as

ROWS = Rows(8)
numbers = st.floats(-1e6, 1e6, width=32)


def rounded(x: Tensor) -> Tensor:
    """Rows x (…, d) to the nearest of 255 levels, by NumPy."""
    given = x.detach().numpy()
    scale = np.maximum(np.abs(given).max(-1, keepdims=True) / 127, 1e-20)
    return torch.from_numpy(np.rint(given / scale) * scale)


class Rounding(torch.nn.Module):
    """A projection whose rows are rounded per head, as they are read from a cache."""

    def __init__(self, projection: torch.nn.Module) -> None:
        super().__init__()
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        return rounded(self.projection(x).unflatten(-1, (G, -1))).flatten(-2)


@given(arrays.arrays(np.float32, (2, G, 3, 5), elements=numbers))
def test_a_number_is_its_nearest_level(x: np.ndarray) -> None:
    given = torch.from_numpy(x)
    stored, read = ROWS.stored("v", given, TorchOps(3))
    levels, scale = stored["v"], stored["v_scale"]
    assert levels.dtype == torch.int8
    assert levels.shape == given.shape
    assert scale.shape == (2, G, 3, 1)
    assert ((read - given).abs() <= scale * (0.5 + 1e-4)).all()
    full = given.abs().amax(-1) > 1e-15
    assert (levels.int().abs().amax(-1) == torch.where(full, 127, levels.int().abs().amax(-1))).all()
    assert not levels[given.abs().amax(-1) == 0].any()


@torch.no_grad()
@pytest.mark.parametrize("window, sinks", [(3, 2), (9, 0), (41, 3)])
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["learned", "rotary"])
def test_window_is_the_definition_with_rounded_rows(model: small.UniformConfig, window: int, sinks: int) -> None:
    made, x = random_mixer(model, WindowConfig(window, sinks, cache_bits=8), scale=0.6), text(50)
    found = [made(x, empty(made))[0], by_steps(made, x, empty(made))[0]]
    exact = random_mixer(model, WindowConfig(window, sinks), scale=0.6)
    plain = window_by_definition(exact, model, x)
    exact.layer.k, exact.layer.v = (Rounding(layer) for layer in (exact.k, exact.v))
    expected = window_by_definition(exact, model, x)
    for y in found:
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)
        assert (y - plain).abs().max() > 1e-3


@torch.no_grad()
def test_cache_is_the_definition_with_rounded_rows() -> None:
    exact, x, _ = setting("grouped", 0)
    made = random_mixer(GPT2, SoftmaxConfig(cache_bits=8))
    state = {s.name: torch.zeros(s.dims(len(x), 0)) for s in made.state_spec()}
    y, after = made(x, state, START)
    exact.layer.k, exact.layer.v = (Rounding(layer) for layer in (exact.k, exact.v))
    none = {name: torch.zeros(len(x), G, 0, small.V, dtype=torch.float64) for name in ("k", "v")}
    np.testing.assert_allclose(y.numpy(), softmax_by_definition(exact, x, none), rtol=1e-6, atol=1e-6)
    stepped, end = by_steps(made, x, state, START)
    torch.testing.assert_close(stepped, y, rtol=1e-6, atol=1e-6)
    assert after["k"].dtype == torch.int8
    assert torch.equal(after["k"], end["k"])


@torch.no_grad()
@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(0, 3), st.integers(1, 30), st.sampled_from(["keep", "after"]))
def test_steps_of_a_hybrid_are_the_sequence(window: int, sinks: int, length: int, positions: str) -> None:
    config = HybridConfig(window, 6, sinks=sinks, positions=positions, cache_bits=8)
    made, x = random_mixer(LLAMA, config), text(length)
    state = {s.name: torch.zeros(s.dims(len(x)), dtype=getattr(torch, s.dtype)) for s in made.state_spec()}
    (y, after), (stepped, end) = made(x, state), by_steps(made, x, state)
    torch.testing.assert_close(y, stepped, rtol=1e-5, atol=1e-5)
    for name, value in after.items():
        torch.testing.assert_close(value.double(), end[name].double(), rtol=1e-5, atol=1e-5)


def test_rounding_has_the_gradient_of_the_identity() -> None:
    x = torch.randn(2, G, 4, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
    stored, read = ROWS.stored("k", x, TorchOps(4))
    read.square().sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * read.detach())
    assert not stored["k"].is_floating_point()


def test_bfloat16_wraps_no_number() -> None:
    """There a scale may be less than a 127th of the largest number."""
    x = torch.randn(4, G, 9, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    stored, read = ROWS.stored("k", x, TorchOps(9))
    assert stored["k"].min() >= -127
    assert ((read - x).abs() <= 0.02 * x.abs().amax(-1, keepdim=True)).all()


def test_every_weight_of_a_student_learns() -> None:
    """Also those that act through rows that left the window."""
    student = convert(
        small.model(small.with_layers(LLAMA, small.SOFTMAX, small.SOFTMAX)), HybridConfig(3, K, cache_bits=8)
    )
    student(small.ids(length=14)).square().mean().backward()
    assert all(
        weight.grad is not None and weight.grad.any() for block in student.blocks for weight in block.parameters()
    )


def test_nearby_integers_are_adopted_and_others_are_not() -> None:
    ops, x = TorchOps(3), torch.tensor([[3.4999, 3.5001], [-7.0, 2.2], [9.495, 0.0]])
    with rounded_as([torch.tensor([[3, 3], [-8, 2], [10, 0]], dtype=torch.int8)]):
        assert ops.to_int8(x).tolist() == [[3, 3], [-7, 2], [10, 0]]
    with rounded_as([torch.tensor([[9, 0]], dtype=torch.int8)]):  # of the last token alone
        assert ops.to_int8(x).tolist() == [[3, 4], [-7, 2], [9, 0]]
    assert ops.to_int8(x).tolist() == [[3, 4], [-7, 2], [9, 0]]


def test_states_take_a_quarter_of_the_memory() -> None:
    narrow, wide = (
        sum(spec.bytes() for spec in small.model(dataclasses.replace(GPT2, layers=(config,))).state_spec())
        for config in (WindowConfig(100, 0, cache_bits=8), WindowConfig(100, 0))
    )
    assert (wide - 4) * (small.V + 4) == (narrow - 4) * 4 * small.V  # beside the position
