"""Every update rule on every target, with separate head counts: a step, prefill, and draft checks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from torch import nn

import rules
from rules import DECAYS, HEADS, KEY_HEADS, RULES, SHARED, B, K, V
from t2r_export.config.targets import TARGETS
from t2r_export.graph.pieces import CHUNK
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Value, value_info
from t2r_export.model.ops import Erase
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.contract.signature import MOST_CHECKED

MANY = [name for name, target in TARGETS.items() if not target.static]

pytestmark = pytest.mark.usefixtures("newest_opset")


def started(target: str, kind: str) -> tuple[GraphOps, list[Value]]:
    """Operators of a step, prefill or draft check, and the graph inputs that precede the rule's."""
    batch = B if TARGETS[target].static else "B"
    ops = TARGETS[target].ops(nn.Module(), batch, None if kind == "step" else "T")
    if kind == "step":
        return ops, []
    given = [Value("x", "float32", (batch, "T", 1))]
    if kind == "check":
        ops.keep = Value("keep", "int64", (batch,))
        given.append(ops.keep)
    ops.flatten_tokens(given[0])
    return ops, given


def opened(ops: GraphOps, target: str, given: list[Value], outputs: list[Any]) -> ort.InferenceSession:
    settled = [ops.settled(out) for out in outputs if out is not None]
    ops.prune([out.name for out in settled])
    inputs, results = ([value_info(v) for v in values] for values in (given, settled))
    graph = helper.make_graph(ops.nodes, "test", inputs, results, list(ops.constants.values()))
    opsets = [helper.make_opsetid(*pair) for pair in TARGETS[target].opsets.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=TARGETS[target].ir_version)
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@lru_cache
def session(target: str, rule: str, heads: str, kind: str) -> tuple[ort.InferenceSession, set[str]]:
    """`Ops.linear_attention` as a graph of inputs named for its arguments, and the operators of its nodes."""
    ops, given = started(target, kind)
    batch, tokens = ops.batch, ops.tokens or 1
    (of_q, of_k), asked = SHARED[heads], RULES[rule]
    shapes: dict[str, tuple[Any, ...]] = {
        "q": (batch, of_q, tokens, K),
        "k": (batch, of_k, tokens, K),
        "v": (batch, HEADS, tokens, V),
        "S": (batch, HEADS, K, V),
    }
    if asked.decay:
        shapes["log_gate"] = (batch, HEADS, tokens, K if asked.decay == "channel" else 1)
    if asked.delta:
        shapes["beta"] = (batch, HEADS, tokens, 1)
    if asked.erase:
        shapes |= dict.fromkeys(("read", "write"), (batch, HEADS, tokens, K))
    values: dict[str, Any] = {name: Value(name, "float32", shape) for name, shape in shapes.items()}
    given += values.values()
    erase = Erase(values.pop("read"), values.pop("write")) if asked.erase else None
    outputs = ops.linear_attention(**values, z=None, erase=erase)
    return opened(ops, target, given, list(outputs)), {node.op_type for node in ops.nodes}


def feeds(given: dict[str, Any]) -> dict[str, np.ndarray]:
    named = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    if "erase" in given:
        named |= given["erase"]._asdict()
    return {name: x.float().numpy() for name, x in named.items()}


def expected(given: dict[str, Any], T: int) -> tuple[np.ndarray, np.ndarray]:
    """o and S of the first T tokens, in float64."""
    o, _, S, _ = TorchOps(T).linear_attention(**rules.tokens(given, slice(T)))
    return o.numpy(), S.numpy()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("heads", SHARED)
@pytest.mark.parametrize("rule", RULES)
def test_a_token(rule: str, heads: str, target: str) -> None:
    given = rules.inputs(rule, heads, 1)
    graph, operators = session(target, rule, heads, "step")
    for received, wanted in zip(graph.run(None, feeds(given)), rules.definition(given), strict=True):
        np.testing.assert_allclose(received, wanted, rtol=5e-6, atol=5e-6)
    assert ("LinearAttention" in operators) == (target in ("fused", "standard") and not RULES[rule].erase)
    assert ("Expand" in operators) == (SHARED[heads][1] == KEY_HEADS and (target != "fused" or RULES[rule].erase))


@pytest.mark.parametrize("heads", SHARED)
@pytest.mark.parametrize("rule", RULES)
def test_many_tokens(rule: str, heads: str) -> None:
    """Chunks of ordinary operators."""
    T = 2 * CHUNK + 5
    given = rules.inputs(rule, heads, T)
    graph, operators = session("portable", rule, heads, "many")
    results = graph.run(None, feeds(given) | {"x": np.zeros((B, T, 1), np.float32)})
    assert ("Scan" in operators) == (rule != "linear")
    for received, wanted in zip(results, expected(given, T), strict=True):
        np.testing.assert_allclose(received, wanted, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("rule", RULES)
def test_fused_prefill_uses_single_node(rule: str) -> None:
    """Checks the nodes; `test_property_any_split_is_the_text` checks the numbers."""
    asked = RULES[rule]
    wanted = not asked.erase and (asked.delta or asked.decay == "channel")
    _, operators = session("fused", rule, "shared", "many")
    assert ("LinearAttention" in operators) == wanted
    assert ("Expand" in operators) != wanted


cases = st.tuples(st.sampled_from(["portable", "fused"]), st.sampled_from(list(RULES)), st.sampled_from(list(SHARED)))


@settings(max_examples=40, deadline=None)
@given(cases, st.sampled_from(list(DECAYS)), st.integers(2, CHUNK + 9), st.integers(0, 99), st.data())
def test_property_any_split_is_the_text(
    case: tuple[str, str, str], decay: str, T: int, seed: int, data: st.DataObject
) -> None:
    """Single steps, then the rest at once: of any length, from any state."""
    given = rules.inputs(*case[1:], T, decay, seed)
    at = data.draw(st.integers(1, min(T - 1, 5)))
    step, many = (session(*case, kind)[0] for kind in ("step", "many"))
    state, seen = feeds(given)["S"], []
    for t in range(at):
        here = feeds(rules.tokens(given, slice(t, t + 1))) | {"S": state}
        o, state = step.run(None, here)
        seen.append(o)
    rest = feeds(rules.tokens(given, slice(at, None))) | {"S": state, "x": np.zeros((B, T - at, 1), np.float32)}
    o, state = many.run(None, rest)
    for received, wanted in zip((np.concatenate([*seen, o], 2), state), expected(given, T), strict=True):
        np.testing.assert_allclose(received, wanted, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("target", MANY)
@pytest.mark.parametrize("heads", ["own", "shared"])
@pytest.mark.parametrize("rule", RULES)
def test_states_are_those_after_the_kept_tokens(rule: str, heads: str, target: str) -> None:
    graph, _ = session(target, rule, heads, "check")
    for T, keep in ((1, (1, 1)), (7, (3, 7)), (MOST_CHECKED, (1, 20))):
        given = rules.inputs(rule, heads, T)
        more = {"x": np.zeros((B, T, 1), np.float32), "keep": np.array(keep)}
        o, S = graph.run(None, feeds(given) | more)
        np.testing.assert_allclose(o, expected(given, T)[0], rtol=2e-5, atol=2e-5)
        for row, n in enumerate(keep):
            np.testing.assert_allclose(S[row], expected(given, n)[1][row], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", MANY)
@pytest.mark.parametrize(
    "name, rows", [("linear_recurrence", "B*T"), ("linear_recurrence", 1), ("complex_recurrence", 0)]
)
def test_recurrence_draft_check(name: str, rows: int | str, target: str) -> None:
    D, T, keep = 6, 9, (4, 9)
    ops, given = started(target, "check")
    shape = {"B*T": (B * T, D), 1: (1, D), 0: (D,)}[rows]
    values = [Value("rows", "float32", ("B*T", D)), Value("gate", "float32", (*([rows] if rows else []), D))]
    state = Value("state", "float32", ("B", D))
    graph = opened(ops, target, [*given, *values, state], list(getattr(ops, name)(*values, state)))
    generator = torch.Generator().manual_seed(0)
    x, gate = torch.randn(B * T, D, generator=generator), -torch.rand(shape, generator=generator)
    before = torch.randn(B, D, generator=generator)
    named = {"x": torch.zeros(B, T, 1), "keep": torch.tensor(keep), "rows": x, "gate": gate, "state": before}
    y, after = graph.run(None, {key: value.numpy() for key, value in named.items()})
    wanted, _ = getattr(TorchOps(T), name)(x, gate, before)
    np.testing.assert_allclose(y, wanted, rtol=2e-6, atol=2e-6)
    last = [wanted.view(B, T, D)[row, n - 1] for row, n in enumerate(keep)]
    np.testing.assert_allclose(after, torch.stack(last), rtol=2e-6, atol=2e-6)
