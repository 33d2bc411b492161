"""The update rules on every target: one token against the eager operators, and the operators used."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any

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
from t2r_export.graph.pieces import CHUNK
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Value, value_info
from t2r_export.model.ops import Ops, update_rule
from t2r_export.model.torch_ops import TorchOps

RULES = {"linear": "", "gated": "g", "delta": "b", "gated_delta": "gb"}  # g: has gates, b: has rates β
# shape of a layer's decay: for each sequence, or the same for all
DECAYS = {"data": (B, G, 1, 1), "fixed": (1, G, 1, 1)}
CASES = [(rule, decay) for rule in RULES for decay in (DECAYS if "g" in RULES[rule] else ["none"])]


pytestmark = pytest.mark.usefixtures("newest_opset")


def inputs(rule: str, decay: str) -> dict[str, Tensor]:
    """q, k, v, S, z and the logits of g and β, as far as the rule has them."""
    shapes: dict[str, tuple[int, ...]] = {"q": (B, H, 1, K), "k": (B, G, 1, K), "v": (B, G, 1, V), "S": (B, G, K, V)}
    if "b" not in RULES[rule]:
        shapes["z"] = (B, G, K)
    if "g" in RULES[rule]:
        shapes["gate"] = DECAYS[decay]
    if "b" in RULES[rule]:
        shapes["beta"] = (B, G, 1, 1)
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def token(ops: Ops[Any], rule: str, given: Mapping[str, Any]) -> list[Any]:
    log_gate = ops.log_sigmoid(given["gate"]) if "gate" in given else None
    beta = ops.sigmoid(given["beta"]) if "beta" in given else None
    operands = [given.get(name) for name in "qkvSz"]
    return [out for out in ops.linear_attention(*operands, log_gate, beta) if out is not None]


def graph(target: str, rule: str, given: dict[str, Tensor], batch: str | int) -> tuple[onnx.ModelProto, list[str]]:
    ops = TARGETS[target].ops(nn.Module(), batch)
    values = {name: Value(name, "float32", (1 if len(x) == 1 else batch, *x.shape[1:])) for name, x in given.items()}
    return made(ops, target, values, token(ops, rule, values))


def made(
    ops: GraphOps, target: str, values: dict[str, Value], outputs: list[Value]
) -> tuple[onnx.ModelProto, list[str]]:
    outputs = [ops.settled(out) for out in outputs]
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
    expected = token(TorchOps(), rule, given)
    for batch in ("B", B):
        model, names = graph(target, rule, given, batch)
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        received = session.run(names, {name: x.numpy() for name, x in given.items()})
        for value, wanted in zip(received, expected, strict=True):
            assert value.shape == tuple(wanted.shape)
            np.testing.assert_allclose(value, wanted.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", ["portable", "fused", "standard"])
@pytest.mark.parametrize("rule, fixed", [(rule, fixed) for rule in RULES for fixed in (False, True)])
def test_many_tokens(target: str, rule: str, fixed: bool) -> None:
    """Similar keys, rates near 1, and gates nearly open or closed, where forms exact only on paper would fail."""
    T = 2 * CHUNK + 5
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator)
    q, k, v = draw(B, H, T, K), F.normalize(1 + 0.3 * draw(B, G, T, K), dim=-1), draw(B, G, T, V)
    given = {"q": q, "k": k, "v": v, "S": draw(B, G, K, V)}
    if "b" not in RULES[rule]:
        given["z"] = draw(B, G, K).abs()
    shape = (1, G, 1, 1) if fixed else (B, G, T, 1)
    if "g" in RULES[rule]:
        closing = torch.tensor([-1e-6, -0.1, -90.0])
        given["log_gate"] = closing[torch.randint(0, 3, shape, generator=generator)]
    if "b" in RULES[rule]:
        given["beta"] = 1 - 0.1 * torch.rand((B, G, T, 1), generator=generator)
    names = ("q", "k", "v", "S", "z", "log_gate", "beta")
    wide = {name: x.double() for name, x in given.items()}
    expected = [o for o in TorchOps(T, wide["q"]).linear_attention(*(wide.get(n) for n in names)) if o is not None]

    ops = TARGETS[target].ops(nn.Module(), B, "T")
    values = {"x": Value("x", "float32", (B, "T", 1))}
    ops.flatten_tokens(values["x"])
    for name, tensor in given.items():
        values[name] = Value(name, "float32", tuple("T" if d == T else d for d in tensor.shape))
    outputs = [out for out in ops.linear_attention(*(values.get(n) for n in names)) if out is not None]
    model, outs = made(ops, target, values, outputs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {name: x.numpy() for name, x in (given | {"x": torch.zeros(B, T, 1)}).items()}
    for value, wanted in zip(session.run(outs, feeds), expected, strict=True):
        np.testing.assert_allclose(value, wanted.numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", ["fused", "standard"])
@pytest.mark.parametrize("rule, decay", CASES)
def test_the_operator_has_the_rule(target: str, rule: str, decay: str) -> None:
    model, _ = graph(target, rule, inputs(rule, decay), "B")
    nodes = [node for node in model.graph.node if node.op_type == "LinearAttention"]
    assert len(nodes) == (2 if target == "fused" and "delta" not in rule else 1)  # S, and on target fused z
    expected = {
        "linear": [True] * 4,
        "gated": [True] * 5,
        "delta": [True, True, True, True, False, True],
        "gated_delta": [True] * 6,
    }
    for node in nodes:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        assert attributes == {"update_rule": rule.encode(), "scale": 1.0, "q_num_heads": H, "kv_num_heads": G}
        assert [bool(name) for name in node.input] == expected[rule]


def test_npu_has_the_sigmoid_itself() -> None:
    """NNAPI takes no Softplus and CoreML no Neg, and float16 loses a digit on the way through the logarithm."""
    for target, sigmoids, others in (("npu", 1, 0), ("portable", 0, 1)):
        model, _ = graph(target, "gated", inputs("gated", "data"), B)
        used = Counter(node.op_type for node in model.graph.node)
        assert (used["Sigmoid"], used["Softplus"], used["Exp"]) == (sigmoids, others, others)


def test_names_are_those_of_the_operator() -> None:
    parts = {"g": torch.zeros(()), "b": torch.zeros(())}
    for rule, has in RULES.items():
        assert update_rule(*(parts[part] if part in has else None for part in "gb")) == rule
