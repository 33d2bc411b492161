"""LSTM and GRU layers against their formulas, one unit at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from model.mixers.alone import Alone, by_steps, random_mixer
from small import RECURRENT, WIDTH, B, T, assert_learns
from t2r_export.config.mixers import MixerConfig
from t2r_export.lab.config.recurrent import GRUConfig, LSTMConfig
from t2r_export.lab.recurrent import Recurrent
from t2r_export.model.ops import State

KINDS: dict[str, MixerConfig] = {"lstm": LSTMConfig(), "gru": GRUConfig()}
kinds = pytest.mark.parametrize("kind", KINDS)


def setting(kind: str) -> tuple[Alone, Tensor, State[Tensor]]:
    made = random_mixer(RECURRENT, KINDS[kind])
    assert isinstance(made.layer, Recurrent)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, WIDTH, generator=generator, dtype=torch.float64)
    state = {name: torch.randn(B, WIDTH, generator=generator, dtype=torch.float64) for name in made.states}
    return made, x, state


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Gate after gate: i, f, g, o of an LSTM, r, z, n of a GRU (torch.nn.LSTM, torch.nn.GRU name them so)."""
    weights = {name: weight.detach().numpy() for name, weight in made.rnn.named_parameters()}
    W, U = (np.split(weights[f"weight_{part}_l0"], len(weights["bias_ih_l0"]) // WIDTH) for part in ("ih", "hh"))
    b, d = (np.split(weights[f"bias_{part}_l0"], len(W)) for part in ("ih", "hh"))
    now = {name: value.numpy() for name, value in state.items()}
    out = np.empty((B, T, WIDTH))
    for t in range(T):
        of_x = [x[:, t].numpy() @ w.T + bias for w, bias in zip(W, b, strict=True)]
        of_h = [now["h"] @ u.T + bias for u, bias in zip(U, d, strict=True)]
        if "c" in now:
            i, f, g, o = (a + c for a, c in zip(of_x, of_h, strict=True))
            now["c"] = sigmoid(f) * now["c"] + sigmoid(i) * np.tanh(g)
            now["h"] = sigmoid(o) * np.tanh(now["c"])
        else:
            r, z = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
            now["h"] = (1 - z) * np.tanh(of_x[2] + r * of_h[2]) + z * now["h"]
        out[:, t] = now["h"]
    return out, now


@torch.no_grad()
@kinds
def test_sequence_and_step_are_the_definition(kind: str) -> None:
    made, x, state = setting(kind)
    expected, end = by_definition(made, x, state)
    for y, found in (made(x, state), by_steps(made, x, state)):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-10)
        assert found.keys() == end.keys()
        for name, value in found.items():
            np.testing.assert_allclose(value.numpy(), end[name], rtol=1e-10, atol=1e-10)


@kinds
def test_states_stay_float32_under_autocast(kind: str) -> None:
    made, x, state = setting(kind)
    state = {name: value.float() for name, value in state.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, after = Alone(made.model, made.layer.float())(x.bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert all(value.dtype == torch.float32 for value in after.values())


@kinds
def test_every_weight_learns(kind: str) -> None:
    made, x, state = setting(kind)
    assert_learns(made, made(x, state)[0])


@kinds
def test_state_spec_and_fold(kind: str) -> None:
    made, *_ = setting(kind)
    spec = {s.name: (s.dtype, s.shape, s.initial) for s in made.state_spec()}
    assert spec == dict.fromkeys(made.states, ("float32", ("B", WIDTH), 0.0))
    assert made.why_not_foldable() == f"{kind} layers have no feature map to fold"
