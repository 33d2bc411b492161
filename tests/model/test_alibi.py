"""ALiBi: a bias of scores by distance, in every layer that has scores, also far from the first token."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
from small import ALIBI, HYBRID, SOFTMAX, WINDOW, H, linear
from t2r_export.config.mixers import MixerConfig, WindowConfig
from t2r_export.config.positions import AlibiConfig
from t2r_export.convert import convert
from t2r_export.lab.config.span import SpanConfig
from t2r_export.model.positions.alibi import slopes
from t2r_runtime.contract.state_spec import POSITION
from t2r_runtime.errors import UserError


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 13, 16])
def test_slopes_are_those_of_transformers(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    of_next = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    np.testing.assert_allclose(slopes(heads, 8.0), of_next.numpy(), rtol=1e-6)
    behind = -build_mpt_alibi_tensor(heads, 5, alibi_bias_max=6)[:, 0]  # 4, 3, 2, 1 and 0 tokens
    np.testing.assert_allclose(slopes(heads, 6.0)[:, None] * np.arange(4, -1, -1), behind.numpy(), rtol=1e-6)


def reference(layer: Any, x: torch.Tensor, seen: np.ndarray) -> torch.Tensor:
    """Attention output for rows x (T, D), head by head; seen (T, T) is 1 where a token sees another."""
    T, place = len(x), torch.arange(len(x))
    q, k, v = (projection(x).view(T, -1, small.V) for projection in (layer.q, layer.k, layer.v))
    out = []
    for h in range(H):
        scores = q[:, h] @ k[:, h * small.G // H].T * small.V**-0.5
        scores = scores - slopes(H, 8.0)[h] * (place[:, None] - place)
        weights = torch.where(torch.from_numpy(seen), scores, -torch.inf).softmax(-1)
        out.append(weights @ v[:, h * small.G // H])
    y: torch.Tensor = layer.o(torch.cat(out, -1))
    return y


@pytest.mark.parametrize("inside", [SOFTMAX, WindowConfig(4, 0), SpanConfig(6, ramp=1)], ids=lambda one: one.kind)
@torch.no_grad()
def test_a_layer_is_the_formula(inside: MixerConfig) -> None:
    model = small.model(small.with_layers(ALIBI, inside)).double()
    if isinstance(inside, SpanConfig):
        model.blocks[0].parts[0].inner.span.fill_(1.0)  # every token of the span counts in full
    ids = small.ids(1, 9)
    trace = model.traces(ids)[0].parts[0]
    T, reach = 9, {"softmax": 9, "window": 4, "span": 6}[inside.kind]
    behind = np.arange(T)[:, None] - np.arange(T)
    expected = reference(model.blocks[0].parts[0], trace.normed, (behind >= 0) & (behind < reach))
    torch.testing.assert_close(trace.mixed, expected)


@pytest.mark.parametrize("name", ["alibi", "alibi_kinds"])
@torch.no_grad()
def test_far_from_the_first_token_it_is_as_near_to_it(name: str) -> None:
    """Only distances count: the same states at another position give the same logits; steps equal the sequence."""
    model = small.model(name).double()
    ids, states = small.ids(length=11), small.states(model)
    states[POSITION] = torch.full_like(states[POSITION], 50)  # all buffers are full
    far = {**states, POSITION: states[POSITION] + 10**6}
    logits, after = model.prefill(ids, states)
    torch.testing.assert_close(model.prefill(ids, far)[0], logits)
    stepped, after_steps = small.by_steps(model, ids, states)
    torch.testing.assert_close(stepped, logits)
    small.assert_states(after_steps, after, 1e-9)


@pytest.mark.parametrize("target", ["portable", "fused"])
@pytest.mark.parametrize("name", ["alibi", "alibi_kinds"])
def test_graphs_compute_it(name: str, target: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", name, target=target, prefill=True, draft_check=True)
    assert small.proof(made, tmp_path / "g.onnx", 40).passed


def test_an_npu_graph_has_it_in_windows(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", small.with_layers(ALIBI, WINDOW, HYBRID), target="npu")
    assert small.proof(made, tmp_path / "g.onnx", 40).passed


def test_wrap_preserves_distances() -> None:
    model, ids = small.model("alibi"), small.ids(length=13)
    expected = model(ids)
    model.end_positions("wrap:5")
    assert torch.equal(model(ids), expected)


REFUSED = "softmax, window, span or hybrid layers with alibi positions, or linear ones that drop them; received"


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda: small.with_layers(ALIBI, linear()), f"{REFUSED} a linear layer; choose another mixer"),
        (lambda: small.with_layers(ALIBI, linear(6, positions="after")), f"{REFUSED} a linear layer"),
        (
            lambda: small.translator(base=ALIBI),
            "alibi positions only in causal attention; received encoder_attention; choose others",
        ),
        (lambda: ALIBI.with_attention(positions=AlibiConfig(max_bias=0)), "alibi max_bias to be a finite positive"),
        (lambda: dataclasses.replace(ALIBI, max_positions=9), "no max_positions with positions of the kind alibi"),
    ],
)
def test_unsupported_alibi(change: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        change()
    assert str(caught.value).startswith(f"expected {message}")


def test_a_converted_layer_drops_it_where_somebody_says_so() -> None:
    teacher = small.model(small.with_layers(ALIBI, SOFTMAX, WINDOW))
    with pytest.raises(UserError, match="linear ones that drop them"):
        convert(teacher, linear(), "0")
    student = convert(teacher, linear(positions="drop"), "0")
    assert student.config.positions_summary == "alibi"
    convert(teacher, WINDOW, "all")
