"""A softmax window beside linear attention, against its definition in NumPy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import small
from small import GPT2, LLAMA, B, G, K, V
from t2r_export import reference
from t2r_export.config import ModelConfig
from t2r_export.convert import convert
from t2r_export.describe import describe, lines
from t2r_export.mixer_configs import Guard, HybridConfig
from t2r_export.mixers import Mixer, State, build_mixer
from t2r_export.mixers.hybrid import HybridMixer
from t2r_export.positions import Rotary, build_positions, rotate
from t2r_runtime.errors import UserError

MODELS = {"learned": GPT2, "rotary": LLAMA}
GUARD = Guard("add", 0.3)  # large: a wrong guard cannot hide
merges = pytest.mark.parametrize("merge", HybridConfig.MERGES)
models = pytest.mark.parametrize("model", MODELS)
MAPS = {"relu": K, "elu": V, "hedgehog": 6, "favor": 5, "rfa": 4, "dpfp": 8}


def mixer(model: str, merge: str, window: int, feature_map: str = "relu") -> HybridMixer:
    """A float64 mixer of random weights."""
    config = HybridConfig(window, MAPS[feature_map], feature_map, merge, GUARD)
    made = build_mixer(MODELS[model], config).double()
    assert isinstance(made, HybridMixer)
    generator = torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data = 0.6 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return made


def text(length: int, batch: int = B) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, GPT2.width, generator=generator, dtype=torch.float64)


def turns(model: str, length: int) -> Rotary | None:
    return build_positions(MODELS[model]).rotary(torch.arange(length)[None])


def state(made: Mixer, counts: list[int] | None = None) -> State:
    """The initial state, or random ones: buffers filled or not, each row with its own number of tokens seen."""
    generator = torch.Generator().manual_seed(5)
    rows = len(counts or [0] * B)
    values = {s.name: torch.rand(s.dims(rows), generator=generator).double() for s in made.state_spec()}
    if counts is None:
        values = {name: torch.zeros_like(value) for name, value in values.items()}
    return values | {"count": torch.tensor(counts or [0] * rows, dtype=torch.int32)}


def by_steps(made: Mixer, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
    out = []
    for t in range(x.shape[1]):
        here = None if rotary is None else (rotary[0][:, t], rotary[1][:, t])
        y, state = made.step(x[:, t], state, here)
        out.append(y)
    return torch.stack(out, 1), state


def by_definition(made: HybridMixer, model: ModelConfig, x: Tensor, rotary: Rotary | None) -> Tensor:
    q, k, v = (layer(x).unflatten(-1, (-1, V)) for layer in (made.q, made.k, made.v))
    if rotary is not None:
        q, k = rotate(q, rotary), rotate(k, rotary)
    phi_q, phi_k = (
        phi(heads.transpose(1, 2), query).reshape(*heads.transpose(1, 2).shape[:3], -1).transpose(1, 2)
        for phi, heads, query in zip(made._maps, (q, k), (True, False), strict=True)
    )
    gate = made.config.merge == "gate"
    share = made.merge.sigmoid() if gate else made.merge.exp()
    arrays = (a.numpy() for a in (q / np.sqrt(V), k, v, phi_q, phi_k))
    o = reference.merged(*arrays, made.config.window, share.numpy(), gate, made.config.guard)
    return made.o(torch.from_numpy(o).flatten(2))


@torch.no_grad()
@merges
@models
@pytest.mark.parametrize("window, length", [(4, 40), (1, 7), (20, 50), (30, 12)])
def test_forward_and_step_are_the_definition(model: str, merge: str, window: int, length: int) -> None:
    made, x, rotary = mixer(model, merge, window), text(length), turns(model, length)
    expected = by_definition(made, MODELS[model], x, rotary)
    for y in (made(x, state(made), rotary)[0], by_steps(made, x, state(made), rotary)[0]):
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("feature_map", MAPS)
def test_every_feature_map(feature_map: str) -> None:
    made, x, rotary = mixer("rotary", "gate", 3, feature_map), text(11), turns("rotary", 11)
    y, after = made(x, state(made), rotary)
    torch.testing.assert_close(y, by_definition(made, LLAMA, x, rotary), rtol=1e-10, atol=1e-10)
    stepped, end = by_steps(made, x, state(made), rotary)
    torch.testing.assert_close(stepped, y, rtol=1e-10, atol=1e-10)
    small.assert_states(end, after, 1e-10)


@torch.no_grad()
@settings(max_examples=40)
@given(
    st.sampled_from(list(MODELS)),
    st.sampled_from(HybridConfig.MERGES),
    st.integers(1, 7),
    st.integers(2, 40),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    st.data(),
)
def test_every_form_is_one_function(
    model: str, merge: str, window: int, length: int, counts: list[int], data: st.DataObject
) -> None:
    """Parallel, split anywhere, step by step, from random states."""
    made, x, rotary = mixer(model, merge, window), text(length, len(counts)), turns(model, length)
    start, at = state(made, counts), data.draw(st.integers(1, length - 1))
    parts = [None, None] if rotary is None else [tuple(r[:, :at] for r in rotary), tuple(r[:, at:] for r in rotary)]
    y, after = made(x, start, rotary)
    first, between = made(x[:, :at], start, parts[0])
    second, end = made(x[:, at:], between, parts[1])
    stepped, last = by_steps(made, x, start, rotary)
    for received in (torch.cat([first, second], 1), stepped):
        torch.testing.assert_close(received, y, rtol=1e-10, atol=1e-10)
    for received in (end, last):
        assert list(received) == list(start)
        small.assert_states(received, after, 1e-10)


@torch.no_grad()
@merges
@models
def test_it_is_softmax_attention_until_a_token_leaves(model: str, merge: str) -> None:
    teacher = small.model(dataclasses.replace(MODELS[model], layers=(small.SOFTMAX,) * 2)).double()
    student, ids = convert(teacher, HybridConfig(9, K, merge=merge)), small.ids(length=12)
    torch.testing.assert_close(student(ids)[:, :9], teacher(ids)[:, :9], rtol=1e-10, atol=1e-10)
    assert (student(ids) - teacher(ids))[:, 9:].abs().max() > 1e-4
    new = student.state_dict().keys() - teacher.state_dict().keys()
    assert {name.split(".")[3] for name in new} == {"phi_q", "phi_k", "merge"}


@torch.no_grad()
def test_a_token_enters_the_sums_when_it_leaves_the_window() -> None:
    made, x = mixer("learned", "sum", 3), text(8)
    _, after = made(x, state(made), None)
    k, v = (layer(x).view(B, 8, G, V).transpose(1, 2) for layer in (made.k, made.v))
    assert torch.equal(after["k"], k[:, :, -3:])
    features = made.phi_k(k[:, :, :5], False).view(B, G, 5, K)
    torch.testing.assert_close(after["z"], features.sum(2))
    torch.testing.assert_close(after["S"], features.mT @ v[:, :, :5])


@merges
@models
@pytest.mark.parametrize("target", ["portable", "fused", "npu"])
def test_the_graph_is_the_model(model: str, merge: str, target: str, tmp_path: Path) -> None:
    layers = (HybridConfig(5, K, merge=merge), HybridConfig(5, 6, "hedgehog", merge, Guard("clamp", 1e-2)))
    checkpoint, _ = small.graph(
        tmp_path / "g.onnx", dataclasses.replace(MODELS[model], layers=layers), target=target, batch=2
    )
    proof = small.proof(checkpoint, tmp_path / "g.onnx", steps=60)
    assert proof.passed, proof
    described = describe(tmp_path / "g.onnx")
    assert described.memory == "constant"
    said = (
        f"layer 1: hybrid, the last 5 tokens, 6 hedgehog features of those before, merged by {merge}, not folded: a key"
    )
    assert any(line.startswith(said) for line in lines(described))


@merges
def test_every_weight_learns(merge: str) -> None:
    made = mixer("rotary", merge, 3)
    made(text(9), state(made), turns("rotary", 9))[0].square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "config, message",
    [
        (lambda: HybridConfig(0, K), "expected window to be a whole number from 1 to 1048576; received 0; correct win"),
        (
            lambda: HybridConfig(4, K, merge="mean"),
            "expected merge to be one of sum, gate; received 'mean'; choose one",
        ),
        (lambda: HybridConfig(4, 0), "expected feature_size to be a whole number from 1 to 1048576; received 0; corr"),
        (lambda: HybridConfig(4, K, "tanh"), "expected feature_map to be one of relu, elu, rfa, favor, dpfp, hedgehog"),
        (
            lambda: dataclasses.replace(GPT2, layers=(HybridConfig(4, 5, "elu"),)),
            "expected feature_size to be the head size, 4, with the feature map elu; received 5; correct feature_size",
        ),
    ],
)
def test_impossible_hybrids(config: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        config()  # type: ignore[operator]
    assert str(caught.value).startswith(message)
