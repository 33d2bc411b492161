"""Mamba-2 layers against their formulas, one token and one head at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from model.mixers.alone import Alone, assert_is_definition, random_mixer
from small import LLAMA, MAMBA2, WIDTH, B, G, H, K, T, V, assert_learns
from t2r_export.config.parts import Mamba2Config
from t2r_export.model.ops import State
from t2r_runtime.errors import UserError

FORMS = {
    "norm behind the gate": MAMBA2,
    "norm before the gate": dataclasses.replace(MAMBA2, norm_before_gate=True, norm_groups=1),
    "no norm": dataclasses.replace(MAMBA2, norm_groups=0, conv_bias=False, bias=False, output_bias=True),
    "no limits": dataclasses.replace(MAMBA2, least_step=0.0, largest_step=None, groups=1, taps=4),
}
forms = pytest.mark.parametrize("name", FORMS)


def setting(name: str, tokens: int = T) -> tuple[Alone, Tensor, State[Tensor]]:
    made = random_mixer(LLAMA, FORMS[name])
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, tokens, WIDTH, generator=generator, dtype=torch.float64)
    shapes = {spec.name: spec.dims(B) for spec in made.state_spec()}
    return made, x, {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    c: Mamba2Config = made.config
    w = {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}
    S, past = state["S"].numpy().copy(), state["conv"][:, 0].numpy()
    out, inner = np.zeros((B, x.shape[1], WIDTH)), c.heads * c.head_size
    for b in range(B):
        rows = list(past[b])
        for t in range(x.shape[1]):
            z, u, dt = np.split(
                w["project.weight"] @ x[b, t].numpy() + w.get("project.bias", 0.0), [inner, len(rows[0]) + inner]
            )
            rows.append(u)
            u = silu(sum(w["conv.weight"][-1 - j] * rows[-1 - j] for j in range(c.taps)) + w.get("conv.bias", 0.0))
            v, keys, queries = np.split(u, [inner, inner + c.groups * c.state_size])
            v, k, q = v.reshape(c.heads, -1), keys.reshape(c.groups, -1), queries.reshape(c.groups, -1)
            dt = np.clip(np.log1p(np.exp(dt + w["dt_bias"])), c.least_step, c.largest_step or np.inf)
            y = np.zeros((c.heads, c.head_size))
            for h in range(c.heads):
                g = h // (c.heads // c.groups)
                S[b, h] = np.exp(-np.exp(w["A_log"][h]) * dt[h]) * S[b, h] + dt[h] * np.outer(k[g], v[h])
                y[h] = q[g] @ S[b, h] + w["D"][h] * v[h]
            out[b, t] = w["o.weight"] @ gated(c, y.flatten(), z, w.get("norm_weight")) + w.get("o.bias", 0.0)
        past[b] = rows[-(c.taps - 1) :]
    return out, {"S": S, "conv": past[:, None]}


def gated(c: Mamba2Config, y: np.ndarray, z: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    if weight is None:
        return y * silu(z)
    y = y if c.norm_before_gate else y * silu(z)
    parts = y.reshape(c.norm_groups, -1)
    normed = (parts / np.sqrt((parts**2).mean(1, keepdims=True) + c.norm_eps)).flatten() * weight
    return normed * silu(z) if c.norm_before_gate else normed


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@forms
def test_sequence_and_step_are_the_definition(name: str) -> None:
    made, x, state = setting(name)
    assert_is_definition(made, x, state, by_definition)


def test_states_stay_float32_under_autocast() -> None:
    made, x, state = setting("norm behind the gate")
    state = {name: value.float() for name, value in state.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, after = Alone(made.model, made.layer.float())(x.bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert all(value.dtype == torch.float32 for value in after.values())


@forms
def test_every_weight_learns(name: str) -> None:
    made, x, state = setting(name)
    assert_learns(made, made(x, state)[0])


def test_states_and_words() -> None:
    made, *_ = setting("norm behind the gate")
    assert {s.name: (s.dtype, s.shape) for s in made.state_spec()} == {
        "S": ("float32", ("B", H, K, V)),
        "conv": ("float32", ("B", 1, 2, H * V + 2 * G * K)),
    }
    assert made.why_not_foldable() == "mamba2 layers have no feature map to fold"
    assert (
        MAMBA2.summary()
        == "heads=6,head_size=4,state_size=5,groups=3,taps=3,bias=true,least_step=0.3,largest_step=0.9,norm_groups=3"
    )


def test_a_fresh_layer_forgets_slowly_and_at_once() -> None:
    """dt starts between 0.001 and 0.1, and the decay rate of a head at its number."""
    made = random_mixer(LLAMA, MAMBA2).layer
    fresh = type(made)(made.site, made.config)
    steps = torch.nn.functional.softplus(fresh.dt_bias)
    torch.testing.assert_close(steps[[0, -1]], torch.tensor([0.001, 0.1]))
    torch.testing.assert_close(fresh.A_log.exp(), torch.arange(1.0, H + 1))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"groups": 4}, "groups to divide heads=6; received 4"),
        ({"norm_groups": 5}, "norm_groups to divide 24 channels; received 5"),
        ({"taps": 1}, "taps to be an integer from 2"),
        ({"state_size": 0}, "state_size to be an integer from 1"),
        ({"least_step": 0.9}, "0 <= least_step < largest_step; received 0.9 and 0.9"),
        ({"least_step": -1.0}, "least_step to be a number from 0"),
        ({"largest_step": float("inf")}, "largest_step to be a finite positive number"),
        ({"conv_bias": 1}, "conv_bias to be true or false"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(MAMBA2, **changes)
