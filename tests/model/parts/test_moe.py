"""Mixtures of experts against the definition: each token through the experts that it chooses, and no others."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from small import GPT2, MOE, WIDTH, B, T
from t2r_export.batches.batch import window_batch
from t2r_export.config.parts import MoEConfig
from t2r_export.config.uniform import Dense
from t2r_export.model.parts.base import Site
from t2r_export.model.parts.moe import MoE, load_balance
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.training.stages import Task
from t2r_runtime.errors import UserError

FORMS = {
    "renormalized": MOE,
    "switch": MoEConfig(experts=5, size=3, top=1, renormalize=False, activation="relu", gated=False),
    "of all": dataclasses.replace(MOE, renormalize=False, top=3),
    "all": dataclasses.replace(MOE, top=4),
    "sigmoids": dataclasses.replace(MOE, router="sigmoid", choice_bias=True, scale=1.5, eps=0.25),
    "softmax and a bias": dataclasses.replace(MOE, choice_bias=True, eps=0.25),
    "sigmoids, each alone": dataclasses.replace(MOE, router="sigmoid", renormalize=False, top=3),
}
forms = pytest.mark.parametrize("name", FORMS)


def experts(config: MoEConfig) -> MoE:
    made, generator = MoE(Site(WIDTH), config).double().eval(), torch.Generator().manual_seed(0)
    for weight in made.state_dict().values():
        weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return made


def read(made: MoE, x: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
    y, after = made(x, {}, Step(TorchOps(tokens, x), None, []))
    assert after == {}
    found: torch.Tensor = y
    return found


def rows(count: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_definition(made: MoE, x: np.ndarray) -> np.ndarray:
    """x (D)."""
    c, w = made.config, {name: weight.detach().numpy() for name, weight in made.named_parameters()}
    scores = w["router.weight"] @ x
    probabilities = 1 / (1 + np.exp(-scores)) if c.router == "sigmoid" else np.exp(scores) / np.exp(scores).sum()
    compared = probabilities + (0 if made.choice_bias is None else made.choice_bias.numpy())
    best = np.argsort(-compared)[: c.top]
    shares = c.scale * (probabilities / (probabilities[best].sum() + c.eps) if c.renormalize else probabilities)
    out = np.zeros(WIDTH)
    for e in best:
        hidden = w["up"][e] @ x
        if c.gated:
            gate, up = hidden[::2], hidden[1::2]
            hidden = gate / (1 + np.exp(-gate)) * up
        else:
            hidden = np.maximum(hidden, 0)
        out += shares[e] * (w["down"][e] @ hidden)
    return out


@torch.no_grad()
@forms
def test_a_step_and_a_sequence_are_the_definition(name: str) -> None:
    made, x = experts(FORMS[name]), rows(B * T)
    expected = np.stack([by_definition(made, row) for row in x.numpy()])
    for found in (read(made, x), read(made, x, T)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@settings(max_examples=20)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.booleans())
def test_steps_are_the_sequence(count: int, top: int, size: int, renormalize: bool, gated: bool) -> None:
    config = MoEConfig(experts=count, top=min(top, count), size=size, renormalize=renormalize, gated=gated)
    made, x = experts(config), rows(T)
    torch.testing.assert_close(read(made, x, T), read(made, x), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_equal_experts_are_one() -> None:
    made, x = experts(MOE), rows(T)
    made.up.data, made.down.data = (weight[:1].repeat(4, 1, 1) for weight in (made.up, made.down))
    one = experts(dataclasses.replace(MOE, experts=1, top=1))
    one.up.data, one.down.data = made.up.data[:1], made.down.data[:1]
    torch.testing.assert_close(read(made, x), read(one, x), rtol=1e-10, atol=1e-10)


def test_a_step_graph_gathers_the_chosen_experts(tmp_path: Path) -> None:
    config = small.with_layers(GPT2, small.LINEAR, feed_forwards=(MOE,))
    small.graph(tmp_path / "g.onnx", config, prefill=True)
    nodes = list(onnx.load(tmp_path / "g.onnx", load_external_data=False).graph.node)
    tables = [node.input[0] for node in nodes if node.op_type == "Gather"]
    assert {"blocks.0.parts.1.up", "blocks.0.parts.1.down"} <= set(tables)
    assert not {node.op_type for node in nodes} & {"Loop", "If", "Scan"}


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize(
    "name, nodes",
    [("renormalized", 1), ("of all", 1), ("switch", 1), ("sigmoids", 1), ("softmax and a bias", 1), ("gelu", 0)],
)
def test_fused_has_one_node(name: str, nodes: int, prefill: bool, tmp_path: Path) -> None:
    """Ordinary operators if the node lacks the activation."""
    form = {**FORMS, "gelu": dataclasses.replace(MOE, activation="gelu")}[name]
    config = small.with_layers(GPT2, small.LINEAR, feed_forwards=(form,))
    made, _ = small.graph(tmp_path / "g.onnx", config, target="fused", prefill=prefill)
    for path in (tmp_path / "g.onnx", *tmp_path.glob("g.onnx.*.onnx")):
        found = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
        assert (found.count("MoE"), "TopK" in found) == (name != "gelu", name != "renormalized")
    assert small.proof(made, tmp_path / "g.onnx", steps=10).passed


def test_the_load_is_balanced_in_training() -> None:
    """E Σ f P is 1 for equal loads and E if one expert has all; it is added to the loss once, with gradients."""
    even = torch.zeros(8, 4)
    assert float(load_balance(even, 4)) == pytest.approx(1.0)
    one = torch.tensor([[50.0, 0.0, 0.0, 0.0]]).expand(8, 4)
    assert float(load_balance(one, 1)) == pytest.approx(4.0)
    losses = []
    for balance in (0.0, 0.5):
        config = small.with_layers(
            GPT2, small.LINEAR, small.LINEAR, feed_forwards=(dataclasses.replace(MOE, balance=balance), Dense())
        )
        student = small.model(config)
        stage, ids = Task(student, None), small.ids(length=T + 1)
        losses.append(stage(window_batch(ids)))
        assert float(stage.penalty()) == 0.0  # the loss of the batch has taken it
    student(ids)
    copied = copy.deepcopy(student)
    assert float(copied.blocks[0].parts[1].penalty()) == 0.0
    added = (losses[1] - losses[0]).detach().item()
    assert added == pytest.approx(0.5, rel=0.8)
    losses[1].backward()
    part = student.blocks[0].parts[1]
    assert all(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in part.parameters())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"top": 5}, "top to be an integer from 1 to 4; received 5"),
        ({"experts": 1025}, "experts to be an integer from 1 to 1024"),
        ({"balance": -1.0}, "balance to be a number from 0"),
        ({"activation": "laplace"}, "activation to be one of"),
        ({"router": "tanh"}, "router to be one of softmax, sigmoid"),
        ({"eps": 0.1}, "router sigmoid or choice_bias with eps"),
        ({"router": "sigmoid", "balance": 0.1}, "router softmax with balance"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(MOE, **changes)
