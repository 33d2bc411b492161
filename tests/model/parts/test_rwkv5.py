"""RWKV-5.2's parts against their formulas, one token after another, with the state that the paper has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.mixers.alone import Alone, by_steps, random_mixer
from small import GPT2, RWKV5, WIDTH, B, G, T, assert_learns
from t2r_export.config.parts import ChannelMixConfig, PartConfig
from t2r_export.model.ops import State

K = RWKV5.head_size
MIX = ChannelMixConfig(9, gated=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def setting(config: PartConfig) -> tuple[Alone, Tensor, State[Tensor], dict[str, Any]]:
    made = random_mixer(GPT2, config)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, WIDTH, generator=generator, dtype=torch.float64)
    shapes = {spec.name: spec.dims(B) for spec in made.state_spec()}
    state = {n: torch.randn(shape, generator=generator, dtype=torch.float64) for n, shape in shapes.items()}
    return made, x, state, {name: weight.detach().numpy() for name, weight in made.layer.named_parameters()}


def time_mixing(w: dict[str, Any], x: np.ndarray, before: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """Of one text x (T, D). The paper's S includes the last token; ours does not yet."""
    decay, out, last = np.exp(-np.exp(w["decay"])), [], before["last"].flatten()
    k, v = (before[f"last_{name}"].reshape(G, K) for name in "kv")
    earlier = before["S"]
    S = decay[..., None] * earlier + k[..., None] * v[:, None]
    for row in x:
        r, k, v, g = (w[f"{n}.weight"] @ (row + (last - row) * w[f"x_{n}"][0]) for n in "rkvg")
        r, k, v, last = r.reshape(G, K), k.reshape(G, K), v.reshape(G, K), row
        now = k[..., None] * v[:, None]
        o = ((S + w["u"][..., None] * now) * r[..., None]).sum(1)
        o = (o - o.mean(1, keepdims=True)) / np.sqrt(o.var(1, keepdims=True) + RWKV5.norm_eps)
        o = o.flatten() * w["norm_weight"] + w["norm_bias"]
        out.append(w["o.weight"] @ (o * g * sigmoid(g)))
        earlier, S = S, decay[..., None] * S + now
    return np.array(out), {"last": last, "last_k": k.flatten(), "last_v": v.flatten(), "S": earlier}


def channel_mixing(w: dict[str, Any], x: np.ndarray, before: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    out, last = [], before["last"].flatten()
    for row in x:
        r, k = (row + (last - row) * w[f"x_{n}"][0] for n in "rk")
        out.append(sigmoid(w["gate.weight"] @ r) * (w["down.weight"] @ np.maximum(w["up.weight"] @ k, 0) ** 2))
        last = row
    return np.array(out), {"last": last}


@torch.no_grad()
@pytest.mark.parametrize("config, definition", [(RWKV5, time_mixing), (MIX, channel_mixing)])
def test_sequence_and_step_are_the_definition(config: PartConfig, definition: Any) -> None:
    made, x, state, w = setting(config)
    for y, after in (made(x, state), by_steps(made, x, state)):
        assert after.keys() == state.keys()
        for row in range(B):
            expected, end = definition(w, x[row].numpy(), {name: value[row].numpy() for name, value in state.items()})
            np.testing.assert_allclose(y[row].numpy(), expected, rtol=1e-9, atol=1e-9)
            for name, value in after.items():
                np.testing.assert_allclose(value[row].flatten(), end[name].flatten(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("config", [RWKV5, MIX])
def test_every_weight_learns(config: PartConfig) -> None:
    made, x, state, _ = setting(config)
    assert_learns(made, made(x, state)[0])
