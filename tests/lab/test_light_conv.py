"""Lightweight and dynamic convolutions against their formulas, one token and one channel at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.mixers.alone import Alone, assert_is_definition, assert_is_steps, random_mixer, states, text
from small import GPT2, WIDTH, B, assert_learns
from t2r_export.lab.config.light_conv import LightConvConfig
from t2r_export.model.ops import State
from t2r_runtime.errors import UserError

FORMS = {
    "trained": LightConvConfig(size=15, heads=5, taps=4),
    "dynamic": LightConvConfig(size=12, heads=2, taps=3, dynamic=True),
}
forms = pytest.mark.parametrize("name", FORMS)


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    c: LightConvConfig = made.config
    w = {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}
    per_head, out = c.size // c.heads, np.zeros((B, x.shape[1], WIDTH))
    end = state["conv"].numpy().copy()
    for b in range(B):
        rows = [np.concatenate(list(row)) for row in end[b].swapaxes(0, 1)]  # all heads of a token
        for t in range(x.shape[1]):
            a, gate = np.split(w["project.weight"] @ x[b, t].numpy() + w["project.bias"], 2)
            u = a / (1 + np.exp(-gate))
            rows.append(u)
            kernels = (w["kernels.weight"] @ u).reshape(c.heads, c.taps) if c.dynamic else w["kernel"]
            y = np.zeros(c.size)
            for channel in range(c.size):
                kernel = np.exp(kernels[channel // per_head])
                shares = kernel / kernel.sum()
                y[channel] = sum(shares[-1 - j] * rows[-1 - j][channel] for j in range(c.taps))
            out[b, t] = w["o.weight"] @ y + w["o.bias"]
        end[b] = np.stack(rows[1 - c.taps :]).reshape(c.taps - 1, c.heads, per_head).swapaxes(0, 1)
    return out, {"conv": end}


@forms
def test_sequence_and_step_are_the_definition(name: str) -> None:
    made = random_mixer(GPT2, FORMS[name])
    assert_is_definition(made, text(7), states(made), by_definition)


@settings(max_examples=15)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(2, 9), st.booleans())
def test_steps_are_the_sequence(T: int, heads: int, taps: int, dynamic: bool) -> None:
    made = random_mixer(GPT2, LightConvConfig(size=3 * heads, heads=heads, taps=taps, dynamic=dynamic))
    assert_is_steps(made, T)


@forms
def test_every_weight_learns(name: str) -> None:
    made = random_mixer(GPT2, FORMS[name])
    assert_learns(made, made(text(7), states(made))[0])


def test_a_constant_text_stays_constant() -> None:
    """The weights of a kernel sum to 1."""
    made, x = random_mixer(GPT2, FORMS["dynamic"]), text(1).expand(B, 9, WIDTH)
    y, _ = made(x, states(made))
    torch.testing.assert_close(y[:, 3:], y[:, 3:4].expand(B, 6, WIDTH), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"heads": 3}, "heads to divide size=10; received 3"),
        ({"taps": 1}, "taps to be an integer from 2 to 64"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LightConvConfig(**{"size": 10, "heads": 5, "taps": 4, **changes})
