"""GTrXL's gate in the place of a residual sum: Parisotto et al. 2019 (arXiv 1910.06764), section 3.2."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import small
from small import GPT2, LINEAR, LLAMA, SOFTMAX, WIDTH
from t2r_export.config.gate import ResidualGateConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import DenseConfig
from t2r_export.convert import convert
from t2r_export.fold import fold
from t2r_export.model.residual import ResidualGate
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError

Array = NDArray[np.float64]
GATED = {
    "pre": dataclasses.replace(GPT2, residual_gate=ResidualGateConfig(0.5)),
    "post": dataclasses.replace(
        LLAMA, layers=(LINEAR, SOFTMAX), norm_position="post", residual_gate=ResidualGateConfig(-0.5, relu=False)
    ),
}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def by_definition(x: Array, y: Array, w: dict[str, Array], relu: bool) -> Array:
    """Gate rows of the stream x and of a part's output y, one at a time."""
    rows = []
    for e, out in zip(x, y, strict=True):
        out = np.maximum(out, 0) if relu else out
        r = sigmoid(w["w_r.weight"] @ out + w["u_r.weight"] @ e)
        z = sigmoid(w["w_z.weight"] @ out + w["u_z.weight"] @ e - w["bias"])
        h = np.tanh(w["w_g.weight"] @ out + w["u_g.weight"] @ (r * e))
        rows.append((1 - z) * e + z * h)
    return np.stack(rows)


@torch.no_grad()
@pytest.mark.parametrize("relu", [True, False])
def test_gate_by_definition(relu: bool) -> None:
    torch.manual_seed(0)
    gate = ResidualGate(ResidualGateConfig(0.7, relu), WIDTH).double()
    torch.testing.assert_close(gate.bias, torch.full((WIDTH,), 0.7).double())
    x, y = torch.randn(2, 7, WIDTH).double()
    w = {name: value.numpy() for name, value in gate.state_dict().items()}
    expected = by_definition(x.numpy(), y.numpy(), w, relu)
    np.testing.assert_allclose(gate(x, y, TorchOps(None, x)).numpy(), expected, atol=1e-12)


@torch.no_grad()
def test_block_by_definition() -> None:
    """Each part reads the norm of the stream, and the gate joins its output with the stream, not with the norm."""
    made = small.model(GATED["pre"]).double()
    block, step = made.blocks[0], made.context(made.init_state(1), made.ops(5))
    x = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0)).double()
    trace = block.trace(x, made.layer_state(made.init_state(1), 0), step)
    stream = x.numpy()
    for gate, part in zip(block.residuals, trace.parts, strict=True):
        w = {name: value.numpy() for name, value in gate.state_dict().items()}
        stream = by_definition(stream, part.mixed.numpy(), w, relu=True)
    np.testing.assert_allclose(trace.output.numpy(), stream, atol=1e-12)


@torch.no_grad()
@given(st.floats(40, 1e3), st.integers(0, 99))
def test_a_large_bias_is_the_identity(bias: float, seed: int) -> None:
    torch.manual_seed(seed)
    gate = ResidualGate(ResidualGateConfig(bias), WIDTH).double()
    x, y = torch.randn(2, 3, WIDTH).double()
    torch.testing.assert_close(gate(x, y, TorchOps(None, x)), x, rtol=0, atol=1e-12)


@torch.no_grad()
@settings(max_examples=10)
@given(st.sampled_from(list(GATED)), st.integers(1, 3), st.integers(1, 9))
def test_steps_are_the_sequence(name: str, batch: int, length: int) -> None:
    made = small.model(GATED[name]).double()
    ids, start = small.ids(batch, length), small.states(made, batch)
    expected, after = made.prefill(ids, start)
    logits, states = small.by_steps(made, ids, start)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-9)
    small.assert_states(states, after, 1e-9)


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_graph_is_the_model(name: str, target: str, tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", GATED[name], target=target, prefill=True)
    outcome = small.proof(made, tmp_path / "g.onnx", steps=60)
    assert outcome.passed, outcome
    made.model.blocks[0].residuals[1].bias.data += 0.1
    assert not small.proof(made, tmp_path / "g.onnx", steps=5).passed


@torch.no_grad()
def test_gates_stay_in_folded_and_converted_models() -> None:
    made, ids = small.model(GATED["pre"]).double(), small.ids()
    folded, _ = fold(made)
    torch.testing.assert_close(folded(ids), made(ids), rtol=0, atol=1e-9)
    softmax = small.model(small.with_layers(GATED["pre"], SOFTMAX, SOFTMAX))
    swapped = convert(softmax, LinearConfig(4))
    for one, other in zip(swapped.blocks, softmax.blocks, strict=True):
        for name, value in other.residuals.state_dict().items():
            assert torch.equal(one.residuals.state_dict()[name], value)
    assert ModelConfig.from_dict(made.config.to_dict()) == made.config


def test_refused() -> None:
    gate = ResidualGateConfig()
    with pytest.raises(UserError, match="a residual for a residual gate"):
        DenseConfig(size=3, residual=False, residual_gate=gate)
    with pytest.raises(UserError, match="without norm_sum; received residual_gate"):
        dataclasses.replace(GPT2, parallel=True, residual_gate=gate)
    with pytest.raises(UserError, match="bias of a residual gate"):
        ResidualGateConfig(float("nan"))
