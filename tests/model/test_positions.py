"""Position encodings: formulas, limits, and positions far beyond any text."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
from small import CONFIGS, LLAMA, POSITIONS, SOFTMAX, WIDTH, V, model
from t2r_export.config.mixers import WindowConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import ChosenScaling, LinearScaling, Llama3Scaling
from t2r_export.model.positions.base import Positions, build_positions
from t2r_export.model.positions.embedded import LearnedPositions
from t2r_export.model.positions.rotary import Rotary, rotary_frequencies
from t2r_export.model.positions.turns import Rotation, apply_rope
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError

TORCH = TorchOps()


def positions(kind: str) -> Positions:
    return model({"rotary": "rotary_keep"}.get(kind, kind)).positions


def rope() -> Rotary:
    found = model("rotary_keep").ropes[0]
    assert isinstance(found, Rotary)
    return found


@pytest.mark.parametrize(
    "kind, counts", [("learned", True), ("sinusoidal", True), ("rotary_keep", True), ("none", False)]
)
def test_what_each_kind_does(kind: str, counts: bool) -> None:
    made, x, place = model(kind), torch.randn(2, WIDTH), torch.tensor([3, 8], dtype=torch.int32)
    assert made.counts is (kind != "none")
    assert torch.equal(made.positions.embed(x, place, TORCH), x) == (kind in ("rotary_keep", "none"))
    assert bool(made.ropes) == (kind == "rotary_keep")


def test_learned_adds_its_row() -> None:
    made = positions("learned")
    assert isinstance(made, LearnedPositions)
    place = torch.tensor([0, POSITIONS - 1], dtype=torch.int32)
    assert torch.equal(made.embed(torch.zeros(2, WIDTH), place, TORCH), made.table.weight[place])


def test_learned_ends_with_a_message() -> None:
    made = positions("learned")
    with pytest.raises(UserError) as caught:
        made.embed(torch.zeros(2, WIDTH), torch.tensor([3, POSITIONS], dtype=torch.int32), TORCH)
    assert str(caught.value) == (
        "expected positions 0 to 39, the rows of the learned table; received position 40; "
        "start a new text, or choose another past_end"
    )


def test_learned_clamped_stays_at_its_last_row() -> None:
    made = positions("learned")
    assert isinstance(made, LearnedPositions)
    made.past_end = "clamp"
    far = torch.tensor([3, POSITIONS - 1, POSITIONS, 10**6], dtype=torch.int32)
    last = POSITIONS - 1
    assert torch.equal(made.embed(torch.zeros(4, WIDTH), far, TORCH), made.table.weight[[3, last, last, last]])


def test_sinusoidal_is_the_formula() -> None:
    place = np.array([0, 255, 100_000, 2**31 - 1])
    received = positions("sinusoidal").embed(torch.zeros(4, WIDTH), torch.from_numpy(place).int(), TORCH).numpy()
    angles = place[:, None] * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    np.testing.assert_allclose(received, np.concatenate([np.sin(angles), np.cos(angles)], 1), rtol=0, atol=4e-7)


def test_nothing_ends() -> None:
    end = torch.tensor([2**31 - 1], dtype=torch.int32)
    assert torch.isfinite(positions("sinusoidal").embed(torch.zeros(1, WIDTH), end, TORCH)).all()
    for value in rope().rotate(end[:, None], TORCH):
        assert torch.isfinite(value).all()


def test_a_rope_is_the_formula() -> None:
    """For computed positions, one per token and sequence, and for positions known beforehand."""
    made = rope()
    place = np.array([[0, 255, 100_000], [7, 8, 2**31 - 1]])
    frequencies = made.frequencies.double().numpy()
    received = made.rotate(torch.from_numpy(place).int(), TORCH)
    for value, function in zip(received, (np.cos, np.sin), strict=True):
        assert value.shape == (2, 1, 3, V // 2)
        expected = function(place[..., None] * frequencies)
        np.testing.assert_allclose(value[:, 0].numpy(), expected, rtol=0, atol=4e-7)
    for value, function in zip(made.rotate_known(-3, 5, TORCH, "rope"), (np.cos, np.sin), strict=True):
        expected = function(np.arange(-3, 5)[:, None] * frequencies)
        np.testing.assert_allclose(value.numpy(), expected, rtol=0, atol=1e-7)


def test_constant_positions_computed_once() -> None:
    made = rope()
    first, again = (made.rotate_known(0, 3, TORCH, "rope") for _ in range(2))
    assert list(made._known) == [(0, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**9))
def test_rotary_knows_distances_alone(i: int, j: int, shift: int) -> None:
    made = rope()
    q, k = torch.randn(2, 1, 1, 1, V, generator=torch.Generator().manual_seed(i + j), dtype=torch.float64)

    def score(a: int, b: int) -> float:
        places = (torch.tensor([[p]], dtype=torch.int32) for p in (a, b))
        rotated = [apply_rope(x, made.rotate(p, TORCH), TORCH) for x, p in zip((q, k), places, strict=True)]
        return float((rotated[0] * rotated[1]).sum())

    assert math.isclose(score(i, j), score(i + shift, j + shift), abs_tol=1e-5)


def test_rotary_by_hand() -> None:
    """A quarter turn of pair (0, 2) by position 1; pair (1, 3) turns by 0."""
    quarter = Rotation(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert apply_rope(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), quarter, TORCH).tolist() == [[-3.0, 2.0, 1.0, 4.0]]


def test_what_is_behind_the_rotated_numbers_stays() -> None:
    quarter = Rotation(torch.tensor([0.0]), torch.tensor([1.0]))
    assert apply_rope(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), quarter, TORCH).tolist() == [[-2.0, 1.0, 3.0, 4.0]]


def test_frequencies() -> None:
    plain = rotary_frequencies(RotaryConfig(), 8)
    np.testing.assert_allclose(plain.numpy(), [1, 0.1, 0.01, 0.001], rtol=1e-6)
    linear = rotary_frequencies(RotaryConfig(scaling=LinearScaling(4.0)), 8)
    np.testing.assert_allclose(linear.numpy(), plain.numpy() / 4, rtol=1e-6)
    chosen = rotary_frequencies(RotaryConfig(scaling=ChosenScaling((1, 3), 8)), 4)
    assert chosen.tolist() == plain[[1, 3]].tolist()


def test_llama3_scaling_frequencies() -> None:
    config = RotaryConfig(5e5, Llama3Scaling(8.0))
    plain, scaled = rotary_frequencies(RotaryConfig(5e5), 64), rotary_frequencies(config, 64)
    turns = 8192 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns >= 4], plain[turns >= 4])
    torch.testing.assert_close(scaled[turns <= 1], plain[turns <= 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


@pytest.mark.parametrize("name", ["rotary_keep", "yarn"])
def test_a_window_of_all_tokens_is_softmax(name: str) -> None:
    """YaRN scales scores in a step, whose query does not rotate, and in a sequence."""
    base = small.MODELS[name]
    full, window = (small.model(small.with_layers(base, one)).double() for one in (SOFTMAX, WindowConfig(99, 0)))
    ids = small.ids(length=9)
    expected = full(ids)
    torch.testing.assert_close(window(ids), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(small.by_steps(window, ids, window.init_state(2))[0], expected, rtol=0, atol=1e-6)


def test_yarn_attention_factor() -> None:
    made = model("yarn").ropes[0]
    assert isinstance(made, Rotary)
    place = np.array([[0, 1, 15, 16, 255, 4097, 100_000, 2**31 - 1]])
    angles = place[..., None] * made.frequencies.double().numpy()
    found = made.rotate(torch.from_numpy(place).int(), TORCH)
    assert made.magnitude == pytest.approx(0.1 * math.log(4) + 1)
    for value, function in zip(found, (np.cos, np.sin), strict=True):
        np.testing.assert_allclose(value[:, 0].numpy(), made.magnitude * function(angles), rtol=0, atol=5e-7)
    for value, function in zip(made.rotate_known(-3, 5, TORCH, "rope"), (np.cos, np.sin), strict=True):
        angles = np.arange(-3, 5)[:, None] * made.frequencies.double().numpy()
        np.testing.assert_allclose(value.numpy(), made.magnitude * function(angles), rtol=0, atol=2e-7)


@pytest.mark.parametrize("wrap", [None, 9])
@pytest.mark.parametrize("name", ["yarn", "yarn_span", "ntk"])
@torch.no_grad()
def test_steps_are_the_sequence(name: str, wrap: int | None) -> None:
    made = model(name).double()
    if wrap is not None:
        made.end_positions(f"wrap:{wrap}")
    ids, states = small.ids(length=23), small.states(made)
    logits, after = made.prefill(ids, states)
    stepped, after_steps = small.by_steps(made, ids, states)
    torch.testing.assert_close(stepped, logits, rtol=0, atol=1e-6)
    small.assert_states(after_steps, after, 1e-6)


@torch.no_grad()
def test_wrapped_evicted_keys_keep_norm() -> None:
    """Before position N wrapping changes nothing, whatever YaRN multiplies by."""
    made, ids = model(small.with_layers(small.YARN, small.HYBRID)).double(), small.ids(length=23)
    expected = made(ids)
    made.end_positions("wrap:1000")
    torch.testing.assert_close(made(ids), expected, rtol=0, atol=1e-6)


def test_tables_are_no_weights() -> None:
    for kind in ("sinusoidal", "rotary_keep"):
        assert not any("table" in name for name in model(kind).state_dict())
    rotary = LLAMA.attention.rotary
    assert rotary is not None
    with torch.device("meta"):
        assert Rotary(rotary, V).table.device.type == "cpu"
        assert build_positions(CONFIGS["sinusoidal"].build().positions, small.WIDTH).table.device.type == "cpu"
