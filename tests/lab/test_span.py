"""Adaptive spans against their definition in NumPy, and the fold that gives every kv head a separate buffer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
import small
from model.mixers.alone import Alone, buffers, by_steps, empty, layer, random_mixer, text
from small import GPT2, LLAMA, B, G, H, V
from t2r_export.config.model import ModelConfig
from t2r_export.convert import convert
from t2r_export.describe import describe
from t2r_export.errors import CheckFailed
from t2r_export.fold import fold, fold_error
from t2r_export.lab.config.span import SpanConfig
from t2r_export.lab.span import SpanMixer
from t2r_runtime.errors import UserError

SPAN, RAMP = 11, 4
SHARES = [0.0, 0.5, -3.0, 0.2, 1.0, 7.0]  # of the longest span, one per head; clamped to the bounds
TOKENS = (8, 6, 11)  # ⌈R + z⌉, z = share · (11 - 4), the longer of a group's two
MODELS = {"learned": GPT2, "rotary": LLAMA}
models = pytest.mark.parametrize("model", MODELS)


def mixer(model: str, span: int = SPAN, ramp: int = RAMP) -> Alone:
    """A float64 layer of random weights, with the spans of `SHARES`."""
    made = random_mixer(MODELS[model], SpanConfig(span, ramp), scale=0.6)
    assert isinstance(made.inner, SpanMixer)
    made.span.data = torch.tensor(SHARES, dtype=torch.float64)
    return made


def by_definition(made: Alone, x: Tensor) -> Tensor:
    q, k, v = (layer(x).unflatten(-1, (-1, V)) for layer in (made.q, made.k, made.v))
    q, k = made.rotated(q), made.rotated(k)
    z = np.clip(made.span.numpy(), 0, 1)[:, None] * (made.config.span - made.config.ramp)
    masks = np.clip((made.config.ramp + z - np.arange(made.config.span)) / made.config.ramp, 0, 1)
    return made.output(torch.from_numpy(reference.spanned(q.numpy() / np.sqrt(V), k.numpy(), v.numpy(), masks)))


@torch.no_grad()
@models
@pytest.mark.parametrize("span, ramp, length", [(SPAN, RAMP, 50), (1, 1, 5), (20, 20, 9), (18, 1, 40)])
def test_sequence_and_step_are_the_definition(model: str, span: int, ramp: int, length: int) -> None:
    made, x = mixer(model, span, ramp), text(length)
    expected = by_definition(made, x)
    for form in (made, made.fold()):
        for y in (form(x, empty(form))[0], by_steps(form, x, empty(form))[0]):
            torch.testing.assert_close(y, expected, rtol=2e-6, atol=2e-6)


@torch.no_grad()
@settings(max_examples=40)
@given(
    st.sampled_from(list(MODELS)),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(2, 30),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    st.data(),
)
def test_every_form_is_one_function(
    model: str, ramp: int, more: int, length: int, start: list[int], data: st.DataObject
) -> None:
    """A sequence, any split of it and single steps agree, folded and not, from random states."""
    made = mixer(model, ramp + more, ramp)
    x, state, at = text(length, len(start)), buffers(made, len(start)), data.draw(st.integers(1, length - 1))
    y, after = made(x, state, start)
    first, between = made(x[:, :at], state, start)
    second, end = made(x[:, at:], between, [n + at for n in start])
    stepped, last = by_steps(made, x, state, start)
    for received in (torch.cat([first, second], 1), stepped):
        torch.testing.assert_close(received, y, rtol=2e-6, atol=2e-6)
    for states in (end, last):
        small.assert_states(states, after, 1e-12)
    folded = made.fold()
    for received, states in (
        folded(x, made.fold_state(state), start),
        by_steps(folded, x, made.fold_state(state), start),
    ):
        torch.testing.assert_close(received, y, rtol=2e-6, atol=2e-6)
        small.assert_states(states, made.fold_state(after), 1e-12)


def test_the_fold_keeps_what_each_kv_head_needs() -> None:
    made = mixer("learned")
    folded = made.fold()
    assert isinstance(folded.inner, SpanMixer)
    assert folded.config == SpanConfig(SPAN, RAMP, folded=True, spans=TOKENS) == dataclasses.replace(folded.config)
    assert {s.name: s.shape for s in made.state_spec()} == dict.fromkeys("kv", ("B", G, SPAN, V))
    wanted = {f"{name}{g}": ("B", 1, length, V) for g, length in enumerate(TOKENS) for name in "kv"}
    assert {s.name: s.shape for s in folded.state_spec()} == wanted
    assert not any(s.grows for s in folded.state_spec())
    assert made.needs_position and folded.needs_position
    assert fold_error(made.layer, made.ropes) < 1e-12
    assert folded.fold_state(wanted) is wanted


@pytest.mark.parametrize("model", [GPT2, LLAMA], ids=["learned", "rotary"])
@pytest.mark.parametrize("target", ["portable", "fused", "npu"])
def test_the_graph_is_the_model(model: ModelConfig, target: str, tmp_path: Path) -> None:
    """Steps over several spans; the graph has the states of the folded model."""
    config = dataclasses.replace(model, layers=(SpanConfig(SPAN, RAMP), SpanConfig(5, 2)))
    checkpoint, report = small.graph(tmp_path / "g.onnx", config, target=target, prefill=target != "npu")
    proof = small.proof(checkpoint, tmp_path / "g.onnx", steps=80)
    assert proof.passed, proof
    assert ("prefill graph against steps, logits" in {check.name for check in proof.checks}) == (target != "npu")
    assert [f.status for f in report.folds] == ["folded", "folded"]
    described = describe(tmp_path / "g.onnx")
    assert described.memory == "constant"
    spans = list(small.mixers(fold(checkpoint.model)[0].config)[0].spans)
    assert described.rows[0] == (("span", f"span={SPAN},ramp={RAMP},spans={spans}", "dense", "folded"), 0)


def test_a_wrong_fold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SpanMixer.spans
    made = small.model(dataclasses.replace(GPT2, layers=(SpanConfig(SPAN, RAMP),)))

    def short(self: SpanMixer) -> tuple[int, ...]:
        spans = right(self)
        return spans if self.config.folded else (spans[0] - 1, *spans[1:])

    fold(made)
    monkeypatch.setattr(SpanMixer, "spans", short)
    with pytest.raises(CheckFailed, match="layer 0 folded differs by "):
        fold(made)


@torch.no_grad()
@models
def test_initially_softmax_over_window(model: str) -> None:
    teacher = small.model(dataclasses.replace(MODELS[model], layers=(small.SOFTMAX,) * 2)).double()
    student, ids = convert(teacher, SpanConfig(SPAN, RAMP)), small.ids(length=12)
    near = SPAN - RAMP + 1
    torch.testing.assert_close(student(ids)[:, :near], teacher(ids)[:, :near], rtol=2e-6, atol=2e-6)
    assert (student(ids) - teacher(ids))[:, near:].abs().max() > 1e-4


def test_the_penalty_shortens_spans() -> None:
    made = mixer("learned")
    assert float(made.penalty().detach()) == pytest.approx(0.02 * (0.5 + 0.2 + 1 + 1) / H)
    made.span.data.fill_(1.0)
    optimizer = torch.optim.SGD([made.span], lr=1.0)
    for _ in range(100):
        optimizer.zero_grad()
        made.penalty().backward()
        optimizer.step()
    assert made.spans() == (9, 9, 9)
    assert layer(GPT2, small.SOFTMAX).penalty() == 0


def test_a_span_past_its_bounds_can_come_back() -> None:
    made, x = mixer("learned"), text(9)
    made(x, buffers(made, B), [20, 30])[0].square().sum().backward()
    assert made.span.grad is not None
    assert (made.span.grad != 0).all()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in made.parameters())


def test_json_and_back() -> None:
    model = dataclasses.replace(GPT2, layers=(SpanConfig(SPAN, RAMP), SpanConfig(9, 2, 0.5, True, (3, 9, 2))))
    assert ModelConfig.from_dict(json.loads(json.dumps(model.build().to_dict()))) == model.build()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"span": 0}, "span to be an integer from 1 to 1048576; received 0; correct span"),
        ({"span": 8, "ramp": 9}, "a ramp of at most the span, 8; received 9; correct ramp"),
        ({"span": 8, "ramp": 0}, "ramp to be an integer from 1 to 1048576; received 0; correct ramp"),
        ({"span": 8, "ramp": 2, "span_loss": "x"}, "span_loss to be a number from 0; received 'x'; correct span_loss"),
        ({"span": 8, "ramp": 2, "spans": 3}, "spans to be a list; received int; correct spans"),
        ({"span": 8, "ramp": 2, "spans": [9]}, "spans to be an integer from 1 to 8; received 9; correct spans"),
        ({"span": 8, "ramp": 2, "spans": [4]}, "0 spans; received 1; correct spans"),
        ({"span": 8, "ramp": 2, "folded": True}, "3 spans; received 0; correct spans"),
    ],
)
def test_impossible_spans(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(GPT2, layers=(SpanConfig(**values),))
    assert str(caught.value) == f"expected {message}"
