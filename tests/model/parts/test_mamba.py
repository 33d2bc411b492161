"""Mamba layers against their formulas, one token, one channel and one state at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.mixers.alone import Alone, assert_is_definition, assert_is_steps, random_mixer, states, text
from small import GPT2, MAMBA, WIDTH, B, assert_learns
from t2r_export.config.parts import MambaConfig
from t2r_export.model.ops import State
from t2r_runtime.errors import UserError

FORMS = {
    "norms": MAMBA,
    "weighted norms": dataclasses.replace(MAMBA, inner_norm_weights=True),
    "plain": dataclasses.replace(MAMBA, inner_norm_eps=None, conv_bias=False, bias=False, taps=2),
}
forms = pytest.mark.parametrize("name", FORMS)


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    c: MambaConfig = made.config
    w = {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}
    S, past, out = state["S"].numpy().copy(), state["conv"][:, 0].numpy().copy(), np.zeros((B, x.shape[1], WIDTH))
    for b in range(B):
        rows = list(past[b])
        for t in range(x.shape[1]):
            u, z = np.split(w["project.weight"] @ x[b, t].numpy() + w.get("project.bias", 0.0), 2)
            rows.append(u)
            u = silu(sum(w["conv.weight"][-1 - j] * rows[-1 - j] for j in range(c.taps)) + w.get("conv.bias", 0.0))
            parts = np.split(w["select.weight"] @ u, [c.step_rank, c.step_rank + c.state_size])
            if c.inner_norm_eps is not None:
                parts = [part / np.sqrt((part**2).mean() + c.inner_norm_eps) for part in parts]
                parts = [part * w.get(f"inner_norms.{n}", 1.0) for n, part in enumerate(parts)]
            r, enters, leaves = parts
            dt, y = np.log1p(np.exp(w["dt.weight"] @ r + w["dt_bias"])), w["D"] * u
            for i in range(c.size):
                for n in range(c.state_size):
                    kept = np.exp(-np.exp(w["A_log"][n, i]) * dt[i])
                    S[b, n, i] = kept * S[b, n, i] + dt[i] * enters[n] * u[i]
                    y[i] += leaves[n] * S[b, n, i]
            out[b, t] = w["o.weight"] @ (y * silu(z)) + w.get("o.bias", 0.0)
        past[b] = rows[1 - c.taps :]
    return out, {"S": S, "conv": past[:, None]}


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@forms
def test_sequence_and_step_are_the_definition(name: str) -> None:
    made = random_mixer(GPT2, FORMS[name])
    assert_is_definition(made, text(7), states(made), by_definition)


@settings(max_examples=15)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(2, 5))
def test_steps_are_the_sequence(T: int, size: int, state_size: int, step_rank: int, taps: int) -> None:
    made = random_mixer(GPT2, MambaConfig(size=size, state_size=state_size, step_rank=step_rank, taps=taps))
    assert_is_steps(made, T)


def test_states_stay_float32_under_autocast() -> None:
    made = random_mixer(GPT2, MAMBA)
    state = {name: value.float() for name, value in states(made).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, after = Alone(made.model, made.layer.float())(text(7).bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert all(value.dtype == torch.float32 for value in after.values())


@forms
def test_every_weight_learns(name: str) -> None:
    made = random_mixer(GPT2, FORMS[name])
    assert_learns(made, made(text(7), states(made))[0])


def test_a_fresh_layer_has_the_states_of_the_paper() -> None:
    """dt from 0.001 to 0.1, and decay rates 1, 2, … in each channel (S4D-Real: section 3.6)."""
    layer = random_mixer(GPT2, MAMBA).layer
    fresh = type(layer)(layer.site, layer.config)
    steps = torch.nn.functional.softplus(fresh.dt_bias)
    torch.testing.assert_close(steps[[0, -1]], torch.tensor([0.001, 0.1]))
    torch.testing.assert_close(
        fresh.A_log.exp(), torch.arange(1.0, MAMBA.state_size + 1)[:, None].expand(-1, MAMBA.size)
    )


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"taps": 1}, "taps to be an integer from 2 to 64"),
        ({"state_size": 0}, "state_size to be an integer from 1"),
        ({"step_rank": 0}, "step_rank to be an integer from 1"),
        ({"inner_norm_eps": None, "inner_norm_weights": True}, "inner_norm_eps with inner_norm_weights; received none"),
        ({"inner_norm_eps": 0.0}, "inner_norm_eps to be a finite positive number"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(MAMBA, **changes)
