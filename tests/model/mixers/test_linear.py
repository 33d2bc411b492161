"""T2R attention in all its forms against the NumPy definition."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from model.mixers.alone import random_mixer
from small import DROPPED, GPT2, LINEAR, LLAMA, B, G, H, K, T, V
from t2r_export.config.mixers import Guard, LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model import reference
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.mixers.recurrences import chunked, guarded
from t2r_export.model.positions import Rotary, build_positions

CLAMP, ADD = Guard("clamp", 0.3), Guard("add", 0.3)  # large: a wrong guard cannot hide
SCALED = LinearConfig(K, query_scale=0.5, guard=ADD)
MHA = dataclasses.replace(GPT2, kv_heads=H)
CASES: dict[str, tuple[ModelConfig, LinearConfig]] = {
    "plain": (GPT2, LINEAR),
    "scaled": (GPT2, SCALED),
    "shared": (MHA, LinearConfig(K, shared_features=True, query_scale=2.0)),
    "no_bias": (dataclasses.replace(GPT2, qkv_bias=False, output_bias=False), LINEAR),
    "rotary_keep": (LLAMA, SCALED),
    "rotary_drop": (LLAMA, DROPPED),
}
FOLDABLE = [name for name in CASES if name != "rotary_keep"]


def mixer(case: str, seed: int = 0) -> tuple[LinearMixer, Rotary | None, Rotary | None]:
    """A mixer, the rotation of T tokens of B texts, and that of the first of them."""
    model, config = CASES[case]
    made = random_mixer(model, config, seed=seed)
    assert isinstance(made, LinearMixer)
    positions = build_positions(model)
    place = torch.tensor([[3], [11]], dtype=torch.int32) + torch.arange(T, dtype=torch.int32)
    return made, positions.rotary(place), positions.rotary(place[:, 0])


def inputs(seed: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, T, GPT2.width, generator=generator, dtype=torch.float64)
    S = torch.randn(B, G, K, V, generator=generator, dtype=torch.float64)
    return x, {"S": S, "z": 0.5 + torch.rand(B, G, K, generator=generator, dtype=torch.float64)}


def of_heads(state: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    return {name: value.repeat_interleave(heads // G, dim=1) for name, value in state.items()}


def project(layer: nn.Linear, x: np.ndarray, heads: int) -> np.ndarray:
    y = x @ layer.weight.detach().numpy().T
    if layer.bias is not None:
        y = y + layer.bias.detach().numpy()
    return y.reshape(*x.shape[:2], heads, -1)


def turned(x: np.ndarray, rotary: Rotary) -> np.ndarray:
    """Each pair (i, i + d/2) as a complex number, turned by its angle."""
    half = x.shape[-1] // 2
    angle = rotary[0].double().numpy() + 1j * rotary[1].double().numpy()
    pairs = (x[..., :half] + 1j * x[..., half:]) * angle
    return np.concatenate([pairs.real, pairs.imag], -1)


def by_definition(
    made: LinearMixer, x: Tensor, state: dict[str, Tensor], rotary: Rotary | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y, S and z from the mixer's weights and t2r_export.model.reference alone."""
    a = x.numpy()
    q, k = project(made.q, a, made.heads) * made.config.query_scale, project(made.k, a, made.kv_heads)
    if rotary is not None and made.config.positions == "keep":
        q, k = turned(q, rotary), turned(k, rotary)
    phi = []
    for values, maps in zip((q, k), made._maps, strict=True):
        weight, bias = maps.weight.detach().numpy(), maps.bias.detach().numpy()
        out = np.empty((*values.shape[:3], K))
        for place in np.ndindex(*values.shape[:3]):
            out[place] = reference.relu(values[place], weight[place[2]].T, bias[place[2]])
        phi.append(out)
    S, z = (state[name].numpy() for name in ("S", "z"))
    o, S, z = reference.recurrent(*phi, project(made.v, a, made.kv_heads), S, z, made.config.guard)
    return project(made.o, o.reshape(*a.shape[:2], -1), 1)[:, :, 0], S, z


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_forward_and_step_are_the_definition(case: str) -> None:
    made, rotary, _ = mixer(case)
    x, state = inputs()
    state = of_heads(state, made.kv_heads)
    expected = by_definition(made, x, state, rotary)
    y, after = made(x, state, rotary)
    stepped = []
    for t in range(T):
        here = None if rotary is None else (rotary[0][:, t], rotary[1][:, t])
        out, state = made.step(x[:, t], state, here)
        stepped.append(out)
    for outputs in ((y, after["S"], after["z"]), (torch.stack(stepped, 1), state["S"], state["z"])):
        for received, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(received.numpy(), wanted, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("case", FOLDABLE)
def test_folded_is_unfolded(case: str) -> None:
    made, _, _ = mixer(case)
    x, state = inputs()
    state = of_heads(state, made.kv_heads)
    assert made.fold_obstacle() is None
    folded = made.fold()
    assert folded.config == dataclasses.replace(made.config, folded=True)
    assert not any("phi" in name for name, _ in folded.named_parameters())
    for received, expected in zip(folded(x, state, None), made(x, state, None), strict=True):
        torch.testing.assert_close(received, expected, rtol=1e-10, atol=1e-10)
    for received, expected in zip(folded.step(x[:, 0], state, None), made.step(x[:, 0], state, None), strict=True):
        torch.testing.assert_close(received, expected, rtol=1e-10, atol=1e-10)


def test_what_turns_before_the_feature_map_does_not_fold() -> None:
    made, _, _ = mixer("rotary_keep")
    assert made.fold_obstacle() == "positions are rotated between the projection and φ (positions='keep')"


def test_dropped_positions_are_not_seen() -> None:
    made, rotary, _ = mixer("rotary_drop")
    x, state = inputs()
    torch.testing.assert_close(made(x, state, rotary), made(x, state, None), rtol=0, atol=0)


def test_heads_have_their_own_maps_unless_shared() -> None:
    own, shared = mixer("plain")[0], mixer("shared")[0]
    assert own.phi_q.weight.shape == (H, V, K)
    assert own.phi_k.weight.shape == (G, V, K)
    assert not any("phi_k" in name for name, _ in shared.named_parameters())


def test_state_spec() -> None:
    spec = {s.name: (s.dtype, s.shape, s.initial) for s in mixer("plain")[0].state_spec()}
    assert spec == {"S": ("float32", ("B", G, K, V), 0.0), "z": ("float32", ("B", G, K), 0.0)}


chunk_cases = st.fixed_dictionaries(
    {name: st.integers(1, 3) for name in ("B", "G", "R", "K", "V")}
    | {"T": st.integers(1, 9), "chunk": st.none() | st.integers(1, 10), "guard": st.sampled_from([CLAMP, ADD])}
)


@settings(max_examples=60)
@given(chunk_cases)
def test_chunked_is_the_reference(case: dict[str, int]) -> None:
    B, G, R, K, V, T = (case[name] for name in "BGRKVT")
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, T, heads, K, generator=generator, dtype=torch.float64).relu() for heads in (G * R, G))
    v = torch.randn(B, T, G, V, generator=generator, dtype=torch.float64)
    S = torch.randn(B, G, K, V, generator=generator, dtype=torch.float64)
    z = torch.rand(B, G, K, generator=generator, dtype=torch.float64)
    expected = reference.recurrent(*(t.numpy() for t in (q, k, v, S, z)), case["guard"])
    for wide, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        received = chunked(*(t.to(wide) for t in (q, k, v, S, z)), case["guard"], case["chunk"])
        for value, wanted in zip(received, expected, strict=True):
            assert value.dtype == wide
            np.testing.assert_allclose(value.numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_states_stay_float32_under_autocast() -> None:
    """1,000 equal keys: in bfloat16 the sum would stop growing at 256."""
    ones = torch.ones(1, 1000, 1, 1, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, S, z = chunked(ones, ones, ones, torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1), CLAMP)
    assert S.dtype == z.dtype == o.dtype == torch.float32
    assert S.item() == z.item() == 1000


@pytest.mark.parametrize("guard, expected", [(CLAMP, [0.3, 0.3, 2.0]), (ADD, [0.3, 0.5, 2.3])])
def test_guard_is_the_reference_guard(guard: Guard, expected: list[float]) -> None:
    denominators = torch.tensor([0.0, 0.2, 2.0], dtype=torch.float64)
    np.testing.assert_allclose(guarded(denominators, guard).numpy(), expected)
    np.testing.assert_allclose([reference.guarded(float(d), guard) for d in denominators], expected)


def test_every_weight_learns() -> None:
    made, _, _ = mixer("plain")
    x, state = inputs()
    made(x, state, None)[0].square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0, name


def test_a_query_heads_features_begin_as_its_groups() -> None:
    mixer = LinearMixer(GPT2, LINEAR)
    assert len(mixer.phi_k.weight.detach().unique()) == mixer.phi_k.weight.numel()
    for head in range(H):
        group = head // (H // G)
        assert torch.equal(mixer.phi_q.weight[head], mixer.phi_k.weight[group])
