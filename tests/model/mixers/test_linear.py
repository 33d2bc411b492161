"""T2R attention in all its forms against the NumPy definition."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import reference
from model.mixers.alone import Alone, by_steps, layer, random_mixer
from small import DROPPED, GPT2, LINEAR, LLAMA, B, G, H, K, T, V, assert_learns
from t2r_export.config.mixers import Guard, LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.chunks import chunked_linear_attention
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.ops import State
from t2r_export.model.torch_ops import TorchOps

CLAMP, ADD = Guard("clamp", 0.3), Guard("add", 0.3)  # large: a wrong guard cannot hide
SCALED = LinearConfig(K, query_scale=0.5, guard=ADD)
MHA = GPT2.with_attention(kv_heads=H)
CASES: dict[str, tuple[ModelConfig, LinearConfig]] = {
    "plain": (GPT2, LINEAR),
    "scaled": (GPT2, SCALED),
    "shared": (MHA, LinearConfig(K, shared_features=True, query_scale=2.0)),
    "no_bias": (GPT2.with_attention(qkv_bias=False, output_bias=False), LINEAR),
    "rotary_keep": (LLAMA, SCALED),
    "rotary_drop": (LLAMA, DROPPED),
    "rotary_after": (LLAMA, LinearConfig(K, positions="after", rotary_size=4)),  # of 5
    "rotary_slower": (LLAMA, LinearConfig(K, positions="after", rotary_size=2, frequency_scale=0.5, guard=ADD)),
}
for name in ("plain", "rotary_keep", "rotary_after"):  # a short convolution and an output gate, alone and together
    base, config = CASES[name]
    CASES[f"{name}_conv"] = base, dataclasses.replace(config, conv=3)
CASES["plain_output_gate"] = GPT2, dataclasses.replace(LINEAR, output_gate=True)
CASES["rotary_after_both"] = LLAMA, dataclasses.replace(CASES["rotary_after"][1], conv=4, output_gate=True)
START = [3, 11]  # tokens that each text has read before
FOLDABLE = [name for name in CASES if not name.startswith("rotary_keep")]


def mixer(case: str, seed: int = 0) -> Alone:
    made = random_mixer(*CASES[case], seed=seed)
    assert isinstance(made.inner, LinearMixer)
    return made


def inputs(made: Alone, seed: int = 1) -> tuple[Tensor, State[Tensor]]:
    """A text and the states before it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, T, GPT2.width, generator=generator, dtype=torch.float64)
    state = {s.name: torch.randn(s.dims(B), generator=generator, dtype=torch.float64) for s in made.state_spec()}
    return x, state | {"z": 0.5 + torch.rand(state["z"].shape, generator=generator, dtype=torch.float64)}


def project(layer: nn.Linear, x: np.ndarray, heads: int) -> np.ndarray:
    y = x @ layer.weight.detach().numpy().T
    if layer.bias is not None:
        y = y + layer.bias.detach().numpy()
    return y.reshape(*x.shape[:2], heads, -1)


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> dict[str, np.ndarray]:
    """y, and the states after, from the mixer's weights and reference alone."""
    a, heads, kv_heads = x.numpy(), made.model.attention.heads, made.model.attention.kv_heads
    q, k = project(made.q, a, heads) * made.config.query_scale, project(made.k, a, kv_heads)
    if made.config.positions == "keep":
        q, k = (made.rotated(torch.from_numpy(part), START).numpy() for part in (q, k))
    arguments, after = [], {}
    for values, maps in ((q, made.maps.of_queries), (k, made.maps.of_keys)):
        weight, bias = maps.weight.detach().numpy(), maps.bias.detach().numpy()
        arguments.append(np.einsum("bthd,hdk->bthk", values, weight) + bias)
    v = project(made.v, a, kv_heads)
    if made.config.conv:
        rows, past = np.concatenate([part.reshape(B, T, -1) for part in (*arguments, v)], -1), state["conv"].numpy()
        after["conv"] = np.concatenate([past[:, 0], rows], 1)[:, None, -past.shape[2] :]
        rows = reference.convolved(rows, made.conv.weight.detach().numpy(), past[:, 0])
        parts = np.split(rows, [heads * K, (heads + kv_heads) * K], axis=-1)
        *arguments, v = (part.reshape(B, T, -1, size) for part, size in zip(parts, (K, K, V), strict=True))
    phi = [np.maximum(part, 0.0) for part in arguments]
    S, z = (state[name].numpy() for name in ("S", "z"))
    angles = None
    if made.config.positions == "after":
        size = made.config.rotary_size
        frequencies = made.config.frequency_scale * 10000.0 ** (-np.arange(0, size, 2) / size)
        angles = (np.array(START)[:, None] + np.arange(T))[..., None] * frequencies
    o, after["S"], after["z"] = reference.recurrent(phi[0], phi[1], v, S, z, made.config.guard, angles)
    o = o.reshape(*a.shape[:2], -1)
    if made.config.output_gate:
        weight, offset = (part.detach().numpy() for part in (made.output_gate.weight, made.output_gate.offset))
        o = o * 2 / (1 + np.exp(-(a @ weight.T + offset)))
    return {"y": project(made.o, o, 1)[:, :, 0], **after}


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_sequence_and_step_are_the_definition(case: str) -> None:
    made = mixer(case)
    x, state = inputs(made)
    expected = by_definition(made, x, state)
    tolerance = 1e-6 if made.config.positions == "after" else 1e-10  # a table of float32
    for y, after in (made(x, state, START), by_steps(made, x, state, START)):
        received = {"y": y, **after}
        assert received.keys() == expected.keys()
        for name, wanted in expected.items():
            np.testing.assert_allclose(received[name].numpy(), wanted, rtol=tolerance, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize("case", FOLDABLE)
def test_folded_is_unfolded(case: str) -> None:
    made = mixer(case)
    x, state = inputs(made)
    assert made.why_not_foldable() is None
    folded = made.fold()
    assert folded.config == folded.inner.config == dataclasses.replace(made.config, folded=True)
    inside = {name.removeprefix("inner.") for name, _ in folded.named_parameters() if name.startswith("inner.")}
    assert inside == ({"conv.weight"} if made.config.conv else set())
    for received, expected in zip(folded(x, state, START), made(x, state, START), strict=True):
        torch.testing.assert_close(received, expected, rtol=1e-10, atol=1e-10)
    for received, expected in zip(folded.step(x[:, 0], state, START), made.step(x[:, 0], state, START), strict=True):
        torch.testing.assert_close(received, expected, rtol=1e-10, atol=1e-10)


def test_rotation_before_map_not_foldable() -> None:
    made = mixer("rotary_keep")
    assert made.rotates
    assert made.why_not_foldable() == "positions are rotated between the projection and φ (positions='keep')"


@torch.no_grad()
def test_dropped_positions_are_not_seen() -> None:
    x, state = inputs(mixer("rotary_drop"))
    for case, seen in (("rotary_drop", False), ("rotary_keep", True)):
        here, elsewhere = (mixer(case)(x, state, start)[0] for start in (START, [5, 0]))
        assert torch.equal(here[0], elsewhere[0]) != seen
        assert torch.equal(here[1], elsewhere[1]) != seen


@torch.no_grad()
def test_features_that_rotate_see_distances_alone() -> None:
    """From an empty state, the first position has no effect, so that texts may exceed the training length."""
    x, _ = inputs(mixer("rotary_after"))
    for case, same in (("rotary_after", True), ("rotary_keep", False)):
        made = mixer(case)
        state = {s.name: torch.zeros(s.dims(B), dtype=torch.float64) for s in made.state_spec()}
        here, far = (made(x, state, start)[0] for start in ([0, 0], [4096, 70001]))
        assert torch.allclose(here, far, rtol=1e-5, atol=1e-5) == same


def test_the_guard_suits_what_it_divides() -> None:
    assert LinearConfig(K).guard == Guard("add", 1e-6)
    assert LinearConfig(6, positions="after").guard == Guard("add", 1.0)
    assert LinearConfig(6, positions="after", guard=CLAMP).guard == CLAMP


def test_heads_have_their_own_maps_unless_shared() -> None:
    own, shared = mixer("plain").maps, mixer("shared").maps
    assert own.q.weight.shape == (H, V, K)
    assert own.k.weight.shape == (G, V, K)
    assert (own.of_queries, own.of_keys) == (own.q, own.k)
    assert shared.of_keys is shared.of_queries is shared.q
    assert [name for name, _ in shared.named_parameters()] == ["q.weight", "q.bias"]


@torch.no_grad()
def test_conv_and_output_gate_initially_identity() -> None:
    plain = layer(GPT2, LINEAR).double()
    both = layer(GPT2, dataclasses.replace(LINEAR, conv=4, output_gate=True)).double()
    missing, unexpected = both.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert missing == ["inner.output_gate.weight", "inner.output_gate.offset", "inner.conv.weight"]
    first, second = Alone(GPT2, plain), Alone(GPT2, both)
    x, state = inputs(first)
    more = state | {"conv": torch.randn(both.state_spec()[-1].dims(B), dtype=torch.float64)}
    torch.testing.assert_close(second(x, more)[0], first(x, state)[0], rtol=1e-12, atol=1e-12)


def test_state_spec() -> None:
    spec = {s.name: (s.dtype, s.shape, s.initial) for s in mixer("plain").state_spec()}
    assert spec == {"S": ("float32", ("B", G, K, V), 0.0), "z": ("float32", ("B", G, K), 0.0)}


chunk_cases = st.fixed_dictionaries(
    {name: st.integers(1, 3) for name in ("B", "G", "R", "K", "V")}
    | {"T": st.integers(1, 20), "chunk": st.none() | st.integers(1, 10), "guard": st.sampled_from([CLAMP, ADD])}
)


def chunked(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, guard: Guard, chunk: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`linear_attention` over T tokens and the division, or with chunks of another size."""
    ops = TorchOps(q.shape[2])
    if chunk is None:
        o, sums, S, after = ops.linear_attention(q, k, v, S, z)
    else:
        o, sums, S, after = chunked_linear_attention(q, k, v, S, z=z, chunk=chunk)
    assert sums is not None and after is not None
    return ops.divide(o, sums, guard), S, after


@settings(max_examples=60)
@given(chunk_cases)
def test_chunked_is_the_reference(case: dict[str, Any]) -> None:
    B, G, R, K, V, T = (case[name] for name in "BGRKVT")
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, heads, T, K, generator=generator, dtype=torch.float64).relu() for heads in (G * R, G))
    v = torch.randn(B, G, T, V, generator=generator, dtype=torch.float64)
    S = torch.randn(B, G, K, V, generator=generator, dtype=torch.float64)
    z = torch.rand(B, G, K, generator=generator, dtype=torch.float64)
    by_token = (t.transpose(1, 2).numpy() for t in (q, k, v))
    o, *after = reference.recurrent(*by_token, S.numpy(), z.numpy(), case["guard"])
    expected = (o.swapaxes(1, 2), *after)
    for wide, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        received = chunked(*(t.to(wide) for t in (q, k, v, S, z)), case["guard"], case["chunk"])
        for value, wanted in zip(received, expected, strict=True):
            assert value.dtype == wide
            np.testing.assert_allclose(value.numpy(), wanted, rtol=tolerance, atol=tolerance)


def test_states_stay_float32_under_autocast() -> None:
    """1,000 equal keys: in bfloat16 the sum would stop growing at 256."""
    ones = torch.ones(1, 1, 1000, 1, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, S, z = chunked(ones, ones, ones, torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1), CLAMP)
    assert S.dtype == z.dtype == o.dtype == torch.float32
    assert S.item() == z.item() == 1000


@pytest.mark.parametrize("guard, expected", [(CLAMP, [0.3, 0.3, 2.0]), (ADD, [0.3, 0.5, 2.3])])
def test_guard_is_the_reference_guard(guard: Guard, expected: list[float]) -> None:
    ops, denominators = TorchOps(), torch.tensor([0.0, 0.2, 2.0], dtype=torch.float64)
    np.testing.assert_allclose(ops.guarded(denominators, guard.kind, guard.eps).numpy(), expected)
    np.testing.assert_allclose(ops.divide(torch.ones(3), denominators, guard).numpy(), 1 / np.array(expected))
    np.testing.assert_allclose([reference.guarded(float(d), guard) for d in denominators], expected)


def test_every_weight_learns() -> None:
    made = mixer("plain")
    x, state = inputs(made)
    assert_learns(made, made(x, state)[0])


def test_query_map_initialized_from_key_map() -> None:
    maps = layer(GPT2, LINEAR).inner.maps
    assert len(maps.k.weight.detach().unique()) == maps.k.weight.numel()
    for head in range(H):
        group = head // (H // G)
        assert torch.equal(maps.q.weight[head], maps.k.weight[group])
