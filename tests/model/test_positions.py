"""Where order comes from: formulas, ends, and numbers far beyond any text."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from small import CONFIGS, LLAMA, POSITIONS, WIDTH, V, model
from t2r_export.config.model import RotaryConfig
from t2r_export.model.positions import LearnedPositions, Positions, build_positions, rotary_frequencies, rotate
from t2r_runtime.errors import UserError


def positions(kind: str) -> Positions:
    return model({"rotary": "rotary_keep"}.get(kind, kind)).positions


@pytest.mark.parametrize("kind, needs", [("learned", True), ("sinusoidal", True), ("rotary", True), ("none", False)])
def test_what_each_kind_does(kind: str, needs: bool) -> None:
    made, x, place = positions(kind), torch.randn(2, WIDTH), torch.tensor([3, 8], dtype=torch.int32)
    assert made.needs_state is needs
    assert torch.equal(made.embed(x, place), x) == (kind in ("rotary", "none"))
    assert (made.rotary(place) is not None) == (kind == "rotary")


def test_learned_adds_its_row() -> None:
    made = positions("learned")
    assert isinstance(made, LearnedPositions)
    place = torch.tensor([0, POSITIONS - 1], dtype=torch.int32)
    assert torch.equal(made.embed(torch.zeros(2, WIDTH), place), made.table.weight[place])


def test_learned_ends_with_a_message() -> None:
    made = positions("learned")
    with pytest.raises(UserError) as caught:
        made.embed(torch.zeros(2, WIDTH), torch.tensor([3, POSITIONS], dtype=torch.int32))
    assert str(caught.value) == (
        "expected positions 0 to 39, the rows of the learned table; received position 40; "
        "start a new text, or choose past_end='clamp'"
    )


def test_learned_clamped_stays_at_its_last_row() -> None:
    made = positions("learned")
    assert isinstance(made, LearnedPositions)
    made.past_end = "clamp"
    far = torch.tensor([3, POSITIONS - 1, POSITIONS, 10**6], dtype=torch.int32)
    last = POSITIONS - 1
    assert torch.equal(made.embed(torch.zeros(4, WIDTH), far), made.table.weight[[3, last, last, last]])


def test_sinusoidal_is_the_formula() -> None:
    place = np.array([0, 255, 100_000, 2**31 - 1])
    received = positions("sinusoidal").embed(torch.zeros(4, WIDTH), torch.from_numpy(place).int()).numpy()
    angles = place[:, None] * 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    np.testing.assert_allclose(received, np.concatenate([np.sin(angles), np.cos(angles)], 1), rtol=0, atol=4e-7)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_nothing_ends(kind: str) -> None:
    made, end = positions(kind), torch.tensor([2**31 - 1], dtype=torch.int32)
    assert torch.isfinite(made.embed(torch.zeros(1, WIDTH), end)).all()
    for value in made.rotary(end) or ():
        assert torch.isfinite(value).all()


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 10**9))
def test_rotary_knows_distances_alone(i: int, j: int, shift: int) -> None:
    made = positions("rotary")
    q, k = torch.randn(2, 1, 1, V, generator=torch.Generator().manual_seed(i + j), dtype=torch.float64)

    def score(a: int, b: int) -> float:
        turned = [rotate(x, made.rotary(torch.tensor([p], dtype=torch.int32))) for x, p in ((q, a), (k, b))]
        return float((turned[0] * turned[1]).sum())

    assert math.isclose(score(i, j), score(i + shift, j + shift), abs_tol=1e-5)


def test_rotary_by_hand() -> None:
    """A quarter turn of pair (0, 2) by position 1; pair (1, 3) turns by 0."""
    cos, sin = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert rotate(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), (cos, sin)).tolist() == [[-3.0, 2.0, 1.0, 4.0]]


def test_frequencies() -> None:
    plain = rotary_frequencies(RotaryConfig(), 8)
    np.testing.assert_allclose(plain.numpy(), [1, 0.1, 0.01, 0.001], rtol=1e-6)
    linear = rotary_frequencies(RotaryConfig(scaling="linear", factor=4.0), 8)
    np.testing.assert_allclose(linear.numpy(), plain.numpy() / 4, rtol=1e-6)


def test_llama3_scaling_keeps_fast_ones_and_slows_slow_ones() -> None:
    config = RotaryConfig(5e5, "llama3", 8.0, 1.0, 4.0, 8192)
    plain, scaled = rotary_frequencies(RotaryConfig(5e5), 64), rotary_frequencies(config, 64)
    turns = 8192 * plain / (2 * math.pi)
    assert torch.equal(scaled[turns >= 4], plain[turns >= 4])
    torch.testing.assert_close(scaled[turns <= 1], plain[turns <= 1] / 8)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_turns_are_no_weights() -> None:
    for kind in ("sinusoidal", "rotary_keep"):
        assert not any("turns" in name for name in model(kind).state_dict())
    with torch.device("meta"):
        assert build_positions(LLAMA).turns.device.type == "cpu"
    assert CONFIGS["rotary_keep"] == LLAMA
