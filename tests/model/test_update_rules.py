"""The update rules as every target writes them: one token against the eager operators, and by which operators."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import Tensor, nn

from small import B, G, H, K, V
from t2r_export.config.targets import TARGETS
from t2r_export.graph.prefill import CHUNK
from t2r_export.graph.recorder import GraphOps, Value, value_info
from t2r_export.model.mixers.recurrences import RECURRENCES
from t2r_export.model.ops import TORCH, TorchOps

# what a layer's decay may be: computed for each sequence, for each of its features too, or the same for all sequences
DECAYS = {"data": (B, G, 1, 1), "feature": (B, G, K, 1), "fixed": (1, G, 1, 1)}
CASES = [(rule, decay) for rule in RECURRENCES for decay in (DECAYS if RECURRENCES[rule].gated else ["none"])]


@pytest.fixture(autouse=True)
def newest_opset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")


def inputs(rule: str, decay: str) -> dict[str, Tensor]:
    """q, k, v, S, z and the logits of g and β, as far as the rule has them."""
    shapes = {"q": (B, H * K), "k": (B, G * K), "v": (B, G * V), "S": (B, G, K, V)}
    if not RECURRENCES[rule].delta:
        shapes["z"] = (B, G, K)
    if RECURRENCES[rule].gated:
        shapes["gate"] = DECAYS[decay]  # type: ignore[assignment]
    if RECURRENCES[rule].delta:
        shapes["beta"] = (B, G, 1, 1)  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def token(ops: TorchOps, rule: str, given: dict[str, Tensor]) -> list[Tensor]:
    log_gate = ops.log_sigmoid(given["gate"]) if "gate" in given else None
    beta = ops.sigmoid(given["beta"]) if "beta" in given else None
    operands = [given.get(name) for name in "qkvSz"]
    return [out for out in RECURRENCES[rule].step(*operands, log_gate, beta, ops) if out is not None]


def graph(target: str, rule: str, given: dict[str, Tensor], batch: str | int) -> tuple[onnx.ModelProto, list[str]]:
    ops = TARGETS[target].ops(nn.Module(), batch)
    values = {name: Value(name, "float32", (1 if len(x) == 1 else batch, *x.shape[1:])) for name, x in given.items()}
    return made(ops, target, values, token(ops, rule, values))  # type: ignore[arg-type]


def made(
    ops: GraphOps, target: str, values: dict[str, Value], outputs: list[Value]
) -> tuple[onnx.ModelProto, list[str]]:
    names = [out.name for out in outputs]
    ops.prune(names)
    graph = helper.make_graph(
        ops.nodes,
        "test",
        [value_info(v) for v in values.values()],
        [value_info(v) for v in outputs],
        list(ops.constants.values()),
    )
    opsets = [helper.make_opsetid(*pair) for pair in TARGETS[target].opsets.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=TARGETS[target].ir_version)
    onnx.checker.check_model(model, full_check=True)
    return model, names


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rule, decay", CASES)
def test_a_token(target: str, rule: str, decay: str) -> None:
    given = inputs(rule, decay)
    expected = token(TORCH, rule, given)
    for batch in ("B", B):
        model, names = graph(target, rule, given, batch)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        received = session.run(names, {name: x.numpy() for name, x in given.items()})
        for value, wanted in zip(received, expected, strict=True):
            assert value.shape == tuple(wanted.shape)
            np.testing.assert_allclose(value, wanted.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", ["portable", "fused", "standard"])
@pytest.mark.parametrize("rule, fixed", [(rule, fixed) for rule in RECURRENCES for fixed in (False, True)])
def test_many_tokens(target: str, rule: str, fixed: bool) -> None:
    """Keys that are alike, rates near 1, and gates that are nearly open or close altogether: what a form that is exact
    on paper alone would get wrong."""
    T = 2 * CHUNK + 5
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator)
    q, k, v = draw(B, T, H, K), F.normalize(1 + 0.3 * draw(B, T, G, K), dim=-1), draw(B, T, G, V)
    S, z = draw(B, G, K, V), None if RECURRENCES[rule].delta else draw(B, G, K).abs()
    shape = (1, 1, G, 1, 1) if fixed else (B, T, G, 1, 1)
    closing = torch.tensor([-1e-6, -0.1, -90.0])[torch.randint(0, 3, shape, generator=generator)]
    log_gate = closing if RECURRENCES[rule].gated else None
    beta = 1 - 0.1 * torch.rand((B, T, G, 1, 1), generator=generator) if RECURRENCES[rule].delta else None
    rows = {"q": q, "k": k, "v": v, "log_gate": log_gate, "beta": beta}
    given = {name: x.flatten(0, 1) for name, x in rows.items() if x is not None}
    states = {"S": S} if z is None else {"S": S, "z": z}
    wide = {name: x.double() for name, x in (given | states).items()}
    operands = [wide.get(name) for name in ("q", "k", "v", "S", "z", "log_gate", "beta")]
    expected = [out for out in TORCH.linear_attention(*operands) if out is not None]

    ops = TARGETS[target].ops(nn.Module(), B)
    x = Value("x", "float32", (B, "N", 1))
    ops.rows(x)
    assert ops.prompt is not None
    values = {"x": x} | {name: Value(name, "float32", tuple(state.shape)) for name, state in states.items()}
    for name, rows_ in given.items():
        values[name] = Value(name, "float32", (1 if len(rows_) == 1 else ops.prompt.rows, *rows_.shape[1:]))
    outputs = ops.linear_attention(*(values.get(name) for name in ("q", "k", "v", "S", "z", "log_gate", "beta")))  # type: ignore[arg-type]
    model, names = made(ops, target, values, [out for out in outputs if out is not None])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {name: x.numpy() for name, x in (given | states | {"x": torch.zeros(B, T, 1)}).items()}
    for value, wanted in zip(session.run(names, feeds), expected, strict=True):
        np.testing.assert_allclose(value, wanted.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", ["fused", "standard"])
@pytest.mark.parametrize("rule, decay", CASES)
def test_the_operator_has_the_rule(target: str, rule: str, decay: str) -> None:
    model, _ = graph(target, rule, inputs(rule, decay), "B")
    (node,) = [node for node in model.graph.node if node.op_type == "LinearAttention"]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes == {"update_rule": rule.encode(), "scale": 1.0, "q_num_heads": H, "kv_num_heads": G}
    given = [bool(name) for name in node.input]
    assert (
        given
        == {
            "linear": [True] * 4,
            "gated": [True] * 5,
            "delta": [True, True, True, True, False, True],
            "gated_delta": [True] * 6,
        }[rule]
    )


def test_npu_has_the_sigmoid_itself() -> None:
    """NNAPI takes no Softplus and CoreML no Neg, and float16 loses a digit on the way through the logarithm."""
    for target, sigmoids, others in (("npu", 1, 0), ("portable", 0, 1)):
        model, _ = graph(target, "gated", inputs("gated", "data"), B)
        used = Counter(node.op_type for node in model.graph.node)
        assert (used["Sigmoid"], used["Softplus"], used["Exp"]) == (sigmoids, others, others)
