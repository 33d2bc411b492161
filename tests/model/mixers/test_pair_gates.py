"""A decay per pair of features that rotate together, against its definition in NumPy, alone and beside a window."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
import small
from model.mixers.alone import Alone, buffers, by_steps, empty, random_mixer, text
from small import LLAMA, B, G, V
from t2r_export.config.mixers import Guard, HybridConfig, LinearConfig
from t2r_export.convert import convert
from t2r_export.model.mixers.gates import OPEN
from t2r_export.model.ops import State
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError

K, WINDOW = 6, 3
GUARD = Guard("add", 0.3)  # large: a wrong guard cannot hide
PAIR: dict[str, Any] = {"positions": "after", "gate": "pair"}
MIXERS: dict[str, LinearConfig | HybridConfig] = {
    "gated": LinearConfig(K, guard=GUARD, update_rule="gated", **PAIR),
    "average": LinearConfig(K, guard=GUARD, update_rule="gated", moving_average=True, output_gate=True, **PAIR),
    "delta": LinearConfig(K, update_rule="gated_delta", normalizer="none", **PAIR),
    "hybrid": HybridConfig(WINDOW, K, guard=GUARD, update_rule="gated", **PAIR),
}
LINEAR = [name for name in MIXERS if name != "hybrid"]
every = pytest.mark.parametrize("name", MIXERS)
linear = pytest.mark.parametrize("name", LINEAR)
START = [3, 11]  # tokens that each text has read before


def mixer(name: str) -> Alone:
    return random_mixer(LLAMA, MIXERS[name])


def turned(x: np.ndarray, start: list[int]) -> np.ndarray:
    """Rotate each vector of x (B, T, heads, d) by its place in the text."""
    frequencies, y = 10000.0 ** (-np.arange(0, x.shape[-1], 2) / x.shape[-1]), x.copy()
    for b, t, h in np.ndindex(*x.shape[:3]):
        y[b, t, h] = reference.turned(x[b, t, h], (start[b] + t) * frequencies)
    return y


def log_gates(made: Alone, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """log g (B, T, G, K), and the logits after those of g."""
    logits = x.numpy() @ made.gates.weight.numpy().T + made.gates.offset.numpy()
    u = logits[..., : G * K // 2].reshape(*x.shape[:2], G, K // 2)
    return -np.log1p(np.exp(-np.concatenate([u, u], -1))), logits[..., G * K // 2 :]


def features(made: Alone, x: Tensor) -> list[np.ndarray]:
    """φ(q), φ(k) and v (B, T, heads, ·), from the weights alone."""
    q, k, v = (part(x).unflatten(-1, (-1, V)).transpose(1, 2) for part in (made.q, made.k, made.v))
    phi = (maps.of(heads, False, TorchOps()) for maps, heads in ((made.maps.q, q), (made.maps.k, k)))
    return [part.transpose(1, 2).numpy() for part in (*phi, v)]


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> list[np.ndarray]:
    """y, S and z of a linear layer."""
    (log_gate, rest), (q, k, v) = log_gates(made, x), features(made, x)
    beta = None
    if made.config.delta:
        beta = 1 / (1 + np.exp(-rest))
        q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + K * 1e-6) for a in (q, k))
    if made.config.moving_average:
        k = k * (1 - np.exp(log_gate))
    rotated = turned(q, START), turned(k, START)
    o, S = reference.recurrence(*rotated, v, state["S"].numpy(), log_gate, beta)
    ends = [S]
    if "z" in state:
        sums, z = reference.recurrence(q, k, np.ones((*v.shape[:3], 1)), state["z"].numpy()[..., None], log_gate)
        o, ends = o / (sums + GUARD.eps), [S, z[..., 0]]
    if made.config.output_gate:
        logits = x.numpy() @ made.output_gate.weight.numpy().T + made.output_gate.offset.numpy()
        o = o * (2 / (1 + np.exp(-logits))).reshape(o.shape)
    return [made.output(torch.from_numpy(o)).numpy(), *ends]


@torch.no_grad()
@linear
def test_linear_layers_are_the_definition(name: str) -> None:
    made, x = mixer(name), text(9)
    state = buffers(made, B)
    expected = by_definition(made, x, state)
    for y, after in (made(x, state, START), by_steps(made, x, state, START)):
        for received, wanted in zip((y, *after.values()), expected, strict=True):
            np.testing.assert_allclose(received.numpy(), wanted, rtol=1e-6, atol=1e-6)  # angles are float32


@torch.no_grad()
def test_a_hybrid_is_the_definition() -> None:
    made, x = mixer("hybrid"), text(11)
    phi_q, phi_k, v = features(made, x)
    q, k = (part(x).unflatten(-1, (-1, V)) for part in (made.q, made.k))
    q, k = (made.rotated(heads).numpy() for heads in (q / np.sqrt(V), k))
    nowhere = [0] * B
    phi = turned(phi_q, nowhere), turned(phi_k, nowhere)
    share, log_gate = made.merge.exp().numpy(), log_gates(made, x)[0]
    o = reference.merged(q, k, v, phi_q, phi_k, WINDOW, share, False, GUARD, log_gate=log_gate, turned_phi=phi)
    expected = made.output(torch.from_numpy(o))
    for y, _ in (made(x, empty(made)), by_steps(made, x, empty(made))):
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)  # angles are float32


@torch.no_grad()
@settings(max_examples=20)
@given(
    st.sampled_from(list(MIXERS)),
    st.integers(2, 40),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    st.data(),
)
def test_every_form_is_one_function(name: str, length: int, start: list[int], data: st.DataObject) -> None:
    """A sequence, any split of it and single steps agree, from random states."""
    made, x = mixer(name), text(length, len(start))
    state, at = buffers(made, len(start)), data.draw(st.integers(1, length - 1))
    y, after = made(x, state, start)
    first, between = made(x[:, :at], state, start)
    second, end = made(x[:, at:], between, [n + at for n in start])
    stepped, last = by_steps(made, x, state, start)
    for received, states in ((torch.cat([first, second], 1), end), (stepped, last)):
        torch.testing.assert_close(received, y, rtol=1e-10, atol=1e-10)
        small.assert_states(states, after, 1e-10)


@torch.no_grad()
@settings(max_examples=20)
@given(st.sampled_from(LINEAR), st.integers(1, 1000))
def test_distances_alone_matter(name: str, later: int) -> None:
    """A decay per feature would break this, since rotation mixes the two features of a pair."""
    made, x = mixer(name), text(13)
    y, shifted = (made(x, empty(made), [start] * B)[0] for start in (0, later))
    torch.testing.assert_close(shifted, y, rtol=2e-4, atol=2e-4)


@torch.no_grad()
@linear
def test_folded_is_unfolded(name: str) -> None:
    made, x = mixer(name), text(9)
    folded, state = made.fold(), buffers(made, B)
    assert not [part for part, _ in folded.gates.named_parameters()]
    for received, expected in ((folded(x, state), made(x, state)), (by_steps(folded, x, state), made(x, state))):
        torch.testing.assert_close(received[0], expected[0], rtol=1e-10, atol=1e-10)
        small.assert_states(received[1], expected[1], 1e-10)


@torch.no_grad()
@every
def test_equal_gates_are_one_gate(name: str) -> None:
    """Equals a layer with one gate per head, with the same states."""
    made = mixer(name)
    one = Alone(LLAMA, random_mixer(LLAMA, dataclasses.replace(MIXERS[name], gate="data")).layer)
    weights = {part: w for part, w in made.layer.state_dict().items() if ".gates." not in part}
    one.layer.load_state_dict(weights, strict=False)
    delta = G * (name == "delta")
    for weight in ("weight", "offset"):
        theirs, ours = getattr(one.gates, weight), getattr(made.gates, weight)
        ours.copy_(torch.cat([theirs[:G].repeat_interleave(K // 2, 0), theirs[G:]]))
        assert len(ours) == G * K // 2 + delta
    assert made.state_spec() == one.state_spec()
    x, state = text(9), empty(made)
    torch.testing.assert_close(made(x, state)[0], one(x, state)[0], rtol=1e-10, atol=1e-10)


@every
def test_every_weight_learns(name: str) -> None:
    made = mixer(name)
    small.assert_learns(made, made(text(9), empty(made))[0])


def test_gates_start_open() -> None:
    teacher = small.model(dataclasses.replace(LLAMA, layers=(small.SOFTMAX,)))
    made = convert(teacher, MIXERS["delta"]).state_dict()
    assert made["blocks.0.parts.0.inner.gates.offset"].tolist() == [OPEN] * (G * K // 2) + [0.0] * G
    assert not made["blocks.0.parts.0.inner.gates.weight"].any()


@pytest.mark.parametrize(
    "name, options, received",
    [
        ("gated", {"positions": "keep"}, "positions keep, rotary_size None"),
        ("delta", {"positions": "drop"}, "positions drop, rotary_size None"),
        ("hybrid", {"positions": "keep"}, "positions keep, rotary_size None"),
        ("hybrid", {"rotary_size": 4}, "positions after, rotary_size 4"),
    ],
)
def test_features_that_do_not_rotate_have_no_pairs(name: str, options: dict[str, Any], received: str) -> None:
    expected = f"expected positions after, and all features rotated, for gate pair; received {received}; choose gate d"
    with pytest.raises(UserError, match=expected):
        dataclasses.replace(MIXERS[name], **options)


def test_a_layer_without_positions_gets_a_gate_per_head() -> None:
    """In models where only some layers rotate."""
    other = small.attention(LLAMA, small.SOFTMAX, positions=None)
    teacher = small.model(small.with_layers(LLAMA, small.SOFTMAX, other))
    made = small.mixers(convert(teacher, MIXERS["gated"]).config)
    assert [(one.positions, one.gate) for one in made] == [("after", "pair"), ("keep", "data")]  # type: ignore[attr-defined, union-attr]
