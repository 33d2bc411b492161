"""Softmax attention with a cache against the textbook formula, one query at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model.mixers.alone import random_mixer
from small import CACHED, GPT2, LLAMA, B, G, H, T, V
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers import build_mixer
from t2r_export.model.mixers.softmax import SoftmaxMixer
from t2r_export.model.positions import Rotary, build_positions, rotate

CASES: dict[str, ModelConfig] = {
    "grouped": GPT2,
    "one_each": dataclasses.replace(GPT2, kv_heads=H),
    "one_for_all": dataclasses.replace(GPT2, kv_heads=1, qkv_bias=False),
    "rotary": LLAMA,
}


def setting(case: str, cached: int, memory: int = 0) -> tuple[SoftmaxMixer, Tensor, dict[str, Tensor], Rotary | None]:
    config = CASES[case]
    made = random_mixer(config, SoftmaxConfig(memory))
    assert isinstance(made, SoftmaxMixer)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, config.width, generator=generator, dtype=torch.float64)
    shape = (B, config.kv_heads, cached, V)
    state = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in ("k", "v")}
    place = torch.tensor([[3], [11]], dtype=torch.int32) + torch.arange(T, dtype=torch.int32)
    return made, x, state, build_positions(config).rotary(place)


def by_definition(made: SoftmaxMixer, x: Tensor, state: dict[str, Tensor], rotary: Rotary | None) -> np.ndarray:
    def heads(layer: nn.Linear, turns: bool) -> np.ndarray:
        y = layer(x).unflatten(-1, (-1, V))
        return (rotate(y, rotary) if turns and rotary is not None else y).detach().numpy()

    plain = heads(made.q, False)
    q, k, v = heads(made.q, True), heads(made.k, True), heads(made.v, False)
    k, v = (np.concatenate([state[n].numpy().swapaxes(1, 2), a], 1) for n, a in (("k", k), ("v", v)))
    past, out = k.shape[1] - T, np.empty((B, T, H, V))
    for b, t, h in np.ndindex(B, T, H):
        g, seen = h // (H // made.kv_heads), past + t + 1
        scores, values = np.exp(k[b, :seen, g] @ q[b, t, h] / np.sqrt(V)), v[b, :seen, g]
        if made.memory is not None:  # no place in the text: the query meets it unturned
            memory_k, memory_v = (part.numpy()[g] for part in (made.memory.k, made.memory.v))
            scores = np.concatenate([scores, np.exp(memory_k @ plain[b, t, h] / np.sqrt(V))])
            values = np.concatenate([values, memory_v])
        out[b, t, h] = scores / scores.sum() @ values
    return np.asarray(made.o(torch.from_numpy(out).flatten(2)).detach())


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("cached", [0, CACHED])
@pytest.mark.parametrize("case", CASES)
def test_forward_and_step_are_the_definition(case: str, cached: int, memory: int) -> None:
    made, x, state, rotary = setting(case, cached, memory)
    expected = by_definition(made, x, state, rotary)
    y, after = made(x, state, rotary)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-10)
    for t in range(T):
        here = None if rotary is None else (rotary[0][:, t], rotary[1][:, t])
        out, state = made.step(x[:, t], state, here)
        np.testing.assert_allclose(out.numpy(), expected[:, t], rtol=1e-10, atol=1e-10)
        assert state["k"].shape[2] == state["v"].shape[2] == cached + t + 1
    for name in state:
        torch.testing.assert_close(state[name], after[name], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_the_cache_keeps_what_was_in_it() -> None:
    made, x, state, rotary = setting("rotary", CACHED)
    _, after = made(x, state, rotary)
    for name in state:
        assert torch.equal(after[name][:, :, :CACHED], state[name])


def test_state_spec_and_fold() -> None:
    made, *_ = setting("grouped", 0)
    spec = {s.name: (s.dtype, s.shape, s.grows) for s in made.state_spec()}
    assert spec == dict.fromkeys(("k", "v"), ("float32", ("B", G, "T", V), True))
    assert made.fold_obstacle() == "softmax attention has no feature map to fold"


@torch.no_grad()
def test_large_scores_of_a_memory_and_of_tokens() -> None:
    """Each so far above the other that a sum of exponentials would be infinite, or nothing."""
    for side in ("k", "q"):
        made, x, state, _ = setting("grouped", CACHED, 2)
        part = made.memory.k if side == "k" else state["k"]  # type: ignore[union-attr]
        part.mul_(4000.0)
        y, _ = made(x, state, None)
        stepped, _ = made.step(x[:, 0], state, None)
        assert y.isfinite().all()
        torch.testing.assert_close(stepped, y[:, 0], rtol=1e-10, atol=1e-10)


def test_a_memory_learns_and_starts_with_nothing_in_it() -> None:
    made, x, state, rotary = setting("rotary", 0, 2)
    made(x, state, rotary)[0].square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    fresh = build_mixer(LLAMA, SoftmaxConfig(memory=2))
    assert isinstance(fresh, SoftmaxMixer) and fresh.memory is not None
    assert not fresh.memory.v.any() and fresh.memory.k.any()
    assert fresh.config.summary() == "memory of 2"
