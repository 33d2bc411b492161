"""Softmax attention with a cache against the textbook formula, one query at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from model.mixers.alone import Alone, layer, random_mixer
from small import CACHED, GPT2, LLAMA, B, G, H, T, V
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.softmax import SoftmaxMixer
from t2r_export.model.ops import State

CASES: dict[str, ModelConfig] = {
    "grouped": GPT2,
    "one_each": GPT2.with_attention(kv_heads=H),
    "one_for_all": GPT2.with_attention(kv_heads=1, qkv_bias=False),
    "rotary": LLAMA,
}
START = [3, 11]  # tokens that each text has read before


def setting(case: str, cached: int, memory: int = 0) -> tuple[Alone, Tensor, State[Tensor]]:
    config = CASES[case]
    made = random_mixer(config, SoftmaxConfig(memory))
    assert isinstance(made.inner, SoftmaxMixer)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, config.width, generator=generator, dtype=torch.float64)
    assert config.attention is not None
    shape = (B, config.attention.kv_heads, cached, V)
    return made, x, {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in ("k", "v")}


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> np.ndarray:
    plain, k, v = (layer(x).unflatten(-1, (-1, V)) for layer in (made.q, made.k, made.v))
    q, k = (made.rotated(part, START).numpy() for part in (plain, k))
    k, v = (np.concatenate([state[n].numpy().swapaxes(1, 2), a], 1) for n, a in (("k", k), ("v", v.numpy())))
    past, out = k.shape[1] - T, np.empty((B, T, H, V))
    for b, t, h in np.ndindex(B, T, H):
        g, seen = h // (H // k.shape[2]), past + t + 1
        scores, values = np.exp(k[b, :seen, g] @ q[b, t, h] / np.sqrt(V)), v[b, :seen, g]
        if made.memory is not None:  # a memory has no position: its query is not rotated
            memory_k, memory_v = (part.numpy()[g] for part in (made.memory.k, made.memory.v))
            scores = np.concatenate([scores, np.exp(memory_k @ plain[b, t, h].numpy() / np.sqrt(V))])
            values = np.concatenate([values, memory_v])
        out[b, t, h] = scores / scores.sum() @ values
    return made.output(torch.from_numpy(out)).numpy()


@torch.no_grad()
@pytest.mark.parametrize("memory", [0, 2])
@pytest.mark.parametrize("cached", [0, CACHED])
@pytest.mark.parametrize("case", CASES)
def test_sequence_and_step_are_the_definition(case: str, cached: int, memory: int) -> None:
    made, x, state = setting(case, cached, memory)
    expected = by_definition(made, x, state)
    y, after = made(x, state, START)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-10)
    for t in range(T):
        out, state = made.step(x[:, t], state, [n + t for n in START])
        np.testing.assert_allclose(out.numpy(), expected[:, t], rtol=1e-10, atol=1e-10)
        assert state["k"].shape[2] == state["v"].shape[2] == cached + t + 1
    assert state.keys() == after.keys()
    for name in state:
        torch.testing.assert_close(state[name], after[name], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_the_cache_keeps_what_was_in_it() -> None:
    made, x, state = setting("rotary", CACHED)
    _, after = made(x, state, START)
    for name in state:
        assert torch.equal(after[name][:, :, :CACHED], state[name])


def test_state_spec_and_fold() -> None:
    made, *_ = setting("grouped", 0)
    spec = {s.name: (s.dtype, s.shape, s.grows) for s in made.state_spec()}
    assert spec == dict.fromkeys(("k", "v"), ("float32", ("B", G, "T", V), True))
    assert made.why_not_foldable() == "softmax layers have no feature map to fold"


@torch.no_grad()
def test_large_scores_of_a_memory_and_of_tokens() -> None:
    """So large on one side that a sum of exponentials would overflow or underflow."""
    for side in ("k", "q"):
        made, x, state = setting("grouped", CACHED, 2)
        part = made.memory.k if side == "k" else state["k"]
        part.mul_(4000.0)
        y, _ = made(x, state)
        stepped, _ = made.step(x[:, 0], state)
        assert y.isfinite().all()
        torch.testing.assert_close(stepped, y[:, 0], rtol=1e-10, atol=1e-10)


def test_memory_initialization_and_gradients() -> None:
    made, x, state = setting("rotary", 0, 2)
    made(x, state, START)[0].square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    fresh = layer(LLAMA, SoftmaxConfig(memory=2)).inner
    assert not fresh.memory.v.any() and fresh.memory.k.any()
    assert fresh.config.summary() == "memory=2"
