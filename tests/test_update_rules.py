"""The update rules as every target writes them: one token against the eager operators, and by which operators."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper
from torch import Tensor, nn

from small import B, G, H, K, V
from t2r_export.graph import Value, value_info
from t2r_export.mixers.recurrences import RECURRENCES
from t2r_export.ops import TORCH, TorchOps
from t2r_export.targets import TARGETS

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
    outputs = token(ops, rule, values)  # type: ignore[arg-type]
    names = [out.name for out in outputs]
    ops.prune(names)
    made = helper.make_graph(
        ops.nodes,
        "test",
        [value_info(v) for v in values.values()],
        [value_info(v) for v in outputs],  # type: ignore[arg-type]
        list(ops.constants.values()),
    )
    opsets = [helper.make_opsetid(*pair) for pair in TARGETS[target].opsets.items()]
    model = helper.make_model(made, opset_imports=opsets, ir_version=TARGETS[target].ir_version)
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
