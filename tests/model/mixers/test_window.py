"""The sliding softmax window against its definition in NumPy, and against full softmax while nothing has left it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
import small
from model.mixers.alone import Alone, buffers, by_steps, empty, random_mixer, text
from small import GPT2, LLAMA, B, G, H, V
from t2r_export.config.mixers import WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.convert import convert
from t2r_export.model.mixers.window import WindowMixer
from t2r_export.model.positions.rotary import rotary_frequencies
from t2r_runtime.errors import UserError

MODELS = {"learned": GPT2, "rotary": LLAMA, "one_each": LLAMA.with_attention(kv_heads=H)}
models = pytest.mark.parametrize("model", MODELS)
sizes = st.tuples(st.integers(1, 7), st.integers(0, 5))


def mixer(model: ModelConfig, window: int, sinks: int, memory: int = 0, **pattern: int) -> Alone:
    made = random_mixer(model, WindowConfig(window, sinks, memory, **pattern), scale=0.6)
    assert isinstance(made.inner, WindowMixer)
    return made


def by_definition(made: Alone, model: ModelConfig, x: Tensor) -> Tensor:
    q, k, v = (layer(x).unflatten(-1, (-1, V)).numpy() for layer in (made.q, made.k, made.v))
    assert model.attention is not None
    rotary = model.attention.rotary
    frequencies = None if rotary is None else rotary_frequencies(rotary, V).double().numpy()
    memory = None if made.memory is None else (made.memory.k.numpy(), made.memory.v.numpy())
    config = made.config
    pattern = {"dilation": config.dilation, "local": config.local}
    o = reference.windowed(q / np.sqrt(V), k, v, config.window, config.sinks, frequencies, memory, **pattern)
    return made.output(torch.from_numpy(o))


@torch.no_grad()
@models
@pytest.mark.parametrize(
    "window, sinks, length", [(3, 2, 41), (1, 0, 5), (1, 3, 9), (6, 0, 20), (17, 4, 50), (30, 9, 20)]
)
def test_sequence_and_step_are_the_definition(model: str, window: int, sinks: int, length: int) -> None:
    made, x = mixer(MODELS[model], window, sinks), text(length)
    expected = by_definition(made, MODELS[model], x)
    for y in (made(x, empty(made))[0], by_steps(made, x, empty(made))[0]):
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)


PATTERNS = [(9, 0, 3, 1), (7, 2, 3, 3), (41, 1, 5, 1), (6, 2, 4, 2), (5, 0, 5, 5)]


@torch.no_grad()
@models
@pytest.mark.parametrize("window, sinks, dilation, local", PATTERNS)
def test_a_pattern_is_the_definition(model: str, window: int, sinks: int, dilation: int, local: int) -> None:
    made, x = mixer(MODELS[model], window, sinks, dilation=dilation, local=local), text(50)
    expected = by_definition(made, MODELS[model], x)
    for y in (made(x, empty(made))[0], by_steps(made, x, empty(made))[0]):
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)
    whole = mixer(MODELS[model], window, sinks)
    assert ((whole(x, empty(made))[0] - expected).abs().max() > 1e-3) == (local < window)


@torch.no_grad()
@settings(max_examples=30)
@given(st.sampled_from(list(MODELS)), st.data(), st.integers(1, 40))
def test_steps_of_a_pattern_are_the_sequence(model: str, data: st.DataObject, length: int) -> None:
    window, sinks = data.draw(st.integers(2, 40)), data.draw(st.integers(0, 3))
    pattern = {"dilation": data.draw(st.integers(2, window)), "local": data.draw(st.integers(1, window))}
    made, start = mixer(MODELS[model], window, sinks, **pattern), [0, 11]
    x, state = text(length), buffers(made, B)
    y, after = made(x, state, start)
    stepped, end = by_steps(made, x, state, start)
    torch.testing.assert_close(stepped, y, rtol=2e-6, atol=2e-6)
    small.assert_states(after, end, 1e-12)


@pytest.mark.parametrize("target", ["portable", "npu"])
def test_graphs_have_patterns(target: str, tmp_path: Path) -> None:
    layers = (WindowConfig(7, 2, dilation=3, local=2), WindowConfig(7, 2), WindowConfig(7, 2, dilation=2))
    companions = {} if target == "npu" else {"prefill": True, "draft_check": True}
    made, _ = small.graph(tmp_path / "g.onnx", small.with_layers(LLAMA, *layers), target=target, **companions)
    assert small.proof(made, tmp_path / "g.onnx", 40).passed


@torch.no_grad()
@models
@pytest.mark.parametrize("sinks", [0, 2])
def test_a_memory_is_seen_by_every_token(model: str, sinks: int) -> None:
    made, x = mixer(MODELS[model], 3, sinks, memory=5), text(23)
    expected = by_definition(made, MODELS[model], x)
    for y in (made(x, empty(made))[0], by_steps(made, x, empty(made))[0]):
        torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)
    for weight in made.memory.parameters():
        weight.data += 1.0
        assert (made(x, empty(made))[0] - expected).abs().max() > 1e-3


@torch.no_grad()
@settings(max_examples=60)
@given(st.sampled_from(list(MODELS)), sizes, st.integers(1, 40), st.lists(st.integers(0, 20), min_size=1, max_size=3))
def test_steps_are_the_sequence(model: str, size: tuple[int, int], length: int, start: list[int]) -> None:
    made = mixer(MODELS[model], *size)
    x, state = text(length, batch=len(start)), buffers(made, len(start))
    y, after = made(x, state, start)
    stepped, end = by_steps(made, x, state, start)
    torch.testing.assert_close(stepped, y, rtol=2e-6, atol=2e-6)
    assert list(after) == list(end) == list(state)
    for name, value in end.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-12)


@torch.no_grad()
@settings(max_examples=30)
@given(st.sampled_from(list(MODELS)), sizes, st.integers(2, 30), st.data())
def test_split_anywhere(model: str, size: tuple[int, int], length: int, data: st.DataObject) -> None:
    made, x, at = mixer(MODELS[model], *size), text(length), data.draw(st.integers(1, length - 1))
    state = buffers(made, B)
    whole, end = made(x, state, [0, 3])
    first, between = made(x[:, :at], state, [0, 3])
    second, after = made(x[:, at:], between, [at, 3 + at])
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=2e-6, atol=2e-6)
    small.assert_states(after, end, 1e-12)


@torch.no_grad()
@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["learned", "rotary"])
@pytest.mark.parametrize("window, sinks", [(9, 0), (5, 4), (1, 8), (20, 30)])
def test_equals_softmax_before_eviction(model: ModelConfig, window: int, sinks: int) -> None:
    teacher = small.model(dataclasses.replace(model, layers=(small.SOFTMAX,) * 2)).double()
    student = convert(teacher, WindowConfig(window, sinks))
    assert student.state_dict().keys() == teacher.state_dict().keys(), "nothing to learn is new"
    ids = small.ids(length=9)
    torch.testing.assert_close(student(ids), teacher(ids), rtol=2e-6, atol=2e-6)
    if window + sinks == 9:
        longer = small.ids(length=12)
        assert (student(longer) - teacher(longer))[:, 10:].abs().max() > 1e-3


@torch.no_grad()
def test_sinks_are_kept_and_the_window_moves() -> None:
    made, x = mixer(GPT2, 3, 2), text(11)
    _, after = made(x, empty(made))
    k = made.k(x).view(B, 11, G, V).transpose(1, 2)
    assert torch.equal(after["k"], k[:, :, -3:])
    assert torch.equal(after["sink_k"], k[:, :, :2])


@torch.no_grad()
def test_an_absent_slot_weighs_nothing() -> None:
    """The values of a slot without a token, or of one that a sink holds, have no effect."""
    made, x = mixer(LLAMA, 4, 3), text(3)
    state = empty(made)
    filled = {name: value + 1e3 for name, value in state.items()}
    for form in (made, lambda *args: by_steps(made, *args)):
        assert torch.equal(form(x, filled)[0], form(x, state)[0])


def test_state_spec_and_fold() -> None:
    made = mixer(GPT2, 3, 2)
    spec = {s.name: (s.dtype, s.shape, s.grows) for s in made.state_spec()}
    window, sinks = ("float32", ("B", G, 3, V), False), ("float32", ("B", G, 2, V), False)
    assert spec == {"k": window, "v": window, "sink_k": sinks, "sink_v": sinks}
    assert [s.name for s in mixer(GPT2, 3, 0).state_spec()] == ["k", "v"]
    assert made.needs_position, "the model has a position for it"
    assert made.why_not_foldable() == "window layers have no feature map to fold"


def test_every_weight_learns() -> None:
    made = mixer(LLAMA, 3, 2)
    small.assert_learns(made, made(text(9), empty(made))[0])


@pytest.mark.parametrize(
    "values, message",
    [
        ((0, 4), "expected window to be an integer from 1 to 1048576; received 0; correct window"),
        ((3, -1), "expected sinks to be an integer from 0 to 1048576; received -1; correct sinks"),
        ((3, True), "expected sinks to be an integer from 0 to 1048576; received True; correct sinks"),
        ((3, 2, -1), "expected memory to be an integer from 0 to 1048576; received -1; correct memory"),
        ((3, 1.0), "expected sinks to be an integer from 0 to 1048576; received 1.0; correct sinks"),
        ((3, 2, 0, 0), "expected dilation to be an integer from 1 to 1048576; received 0; correct dilation"),
        ((3, 2, 0, 4), "expected dilation to be at most the window, 3; received 4; correct dilation"),
        ((3, 2, 0, 2, 4), "expected local to be at most the window, 3; received 4; correct local"),
        ((3, 2, 0, 1, 2), "expected a dilation with local; received none; leave local out"),
    ],
)
def test_impossible_sizes(values: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError) as caught:
        WindowConfig(*values)
    assert str(caught.value) == message
