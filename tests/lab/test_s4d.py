"""Diagonal state spaces against complex arithmetic, one token, one channel and one state at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.mixers.alone import Alone, assert_is_definition, assert_is_steps, empty, random_mixer, states, text
from small import GPT2, WIDTH, B, assert_learns
from t2r_export.lab.config.s4d import S4DConfig
from t2r_export.model.ops import State
from t2r_runtime.errors import UserError

FORMS = {"complex": S4DConfig(state_size=6), "real": S4DConfig(state_size=5, complex=False)}
forms = pytest.mark.parametrize("name", FORMS)


def weights(made: Alone) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Ā, B̄ and C (N, D), the factor of the output, and all weights by name."""
    w = {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}
    A, C = -np.exp(w["A_log"]) + 0j, w["C"] + 0j
    if made.config.complex:
        A, C = A + 1j * w["A_imag"], complexed(w["C"])
    decay = np.exp(np.exp(w["log_dt"]) * A)
    return decay, (decay - 1) / A, C, np.array(2.0 if made.config.complex else 1.0), w


def complexed(x: np.ndarray) -> np.ndarray:
    """Real parts and then imaginary parts (2·N, D) -> (N, D)."""
    real, imaginary = np.split(x, 2)
    return np.asarray(real + 1j * imaginary)


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    decay, enters, C, factor, w = weights(made)
    out, end = np.zeros((B, x.shape[1], WIDTH)), state["x"].numpy().copy()
    for b in range(B):
        s = complexed(end[b]) if made.config.complex else end[b] + 0j
        for t in range(x.shape[1]):
            u, y = x[b, t].numpy(), np.zeros(WIDTH)
            for d in range(WIDTH):
                for n in range(len(s)):
                    s[n, d] = decay[n, d] * s[n, d] + enters[n, d] * u[d]
                    y[d] += factor * (C[n, d] * s[n, d]).real
            out[b, t] = mixed(y + w["D"] * u, w)
        end[b] = np.concatenate([s.real, s.imag]) if made.config.complex else s.real
    return out, {"x": end}


def mixed(y: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    y = y * np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in y])
    a, b = np.split(w["o.weight"] @ y + w["o.bias"], 2)
    return np.asarray(a / (1 + np.exp(-b)))


@forms
def test_sequence_and_step_are_the_definition(name: str) -> None:
    made = random_mixer(GPT2, FORMS[name])
    assert_is_definition(made, text(7), states(made), by_definition, 1e-9)


@settings(max_examples=15)
@given(st.integers(1, 40), st.integers(1, 4), st.booleans())
def test_steps_are_the_sequence(T: int, pairs: int, whole: bool) -> None:
    made = random_mixer(GPT2, S4DConfig(state_size=2 * pairs, complex=whole))
    assert_is_steps(made, T, 1e-9)


@torch.no_grad()
@forms
def test_a_text_is_a_convolution(name: str) -> None:
    """From the empty state, by the kernel K_l = 2 Re(C Ā^l B̄) (eq. 3 and 5)."""
    made, x = random_mixer(GPT2, FORMS[name]), text(9)
    decay, enters, C, factor, w = weights(made)
    kernel = np.stack([factor * (C * decay**lag * enters).sum(0).real for lag in range(9)])  # (T, D)
    rows = x.numpy()
    y = np.stack([sum(kernel[lag] * rows[:, t - lag] for lag in range(t + 1)) for t in range(9)], 1)
    expected = [[mixed(y[b, t] + w["D"] * rows[b, t], w) for t in range(9)] for b in range(B)]
    np.testing.assert_allclose(made(x, empty(made))[0].numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_fresh_layer_is_s4d_lin() -> None:
    layer = random_mixer(GPT2, FORMS["complex"]).layer
    fresh = type(layer)(layer.site, layer.config)
    torch.testing.assert_close(fresh.A_log.exp(), torch.full((3, WIDTH), 0.5))
    torch.testing.assert_close(fresh.A_imag[:, 0], math.pi * torch.arange(3.0))
    torch.testing.assert_close(fresh.log_dt.exp()[[0, -1]], torch.tensor([0.001, 0.1]))
    real = type(layer)(layer.site, FORMS["real"])
    torch.testing.assert_close(real.A_log.exp()[:, 0], torch.arange(1.0, 6.0))


@torch.no_grad()
@forms
def test_a_small_step_keeps_its_input_in_float32(name: str) -> None:
    """Ā - 1 is computed without the subtraction, which would lose 3 of 7 digits at dt = 0.001."""
    layer = random_mixer(GPT2, FORMS[name]).layer
    fresh = type(layer)(layer.site, layer.config)
    state = {s.name: torch.zeros(s.dims(B)) for s in fresh.state_spec()}
    _, after = Alone(GPT2, fresh).step(torch.ones(B, WIDTH), state)
    _, wanted = Alone(GPT2, fresh.double()).step(torch.ones(B, WIDTH).double(), {"x": state["x"].double()})
    torch.testing.assert_close(after["x"].double(), wanted["x"], rtol=2e-6, atol=1e-10)


@forms
def test_every_weight_learns(name: str) -> None:
    made = random_mixer(GPT2, FORMS[name])
    assert_learns(made, made(text(7), states(made))[0])


@pytest.mark.parametrize(
    "size, message",
    [(5, "an even state_size of complex states; received 5"), (0, "state_size to be an integer from 1")],
)
def test_impossible_sizes_are_refused(size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        S4DConfig(state_size=size)
