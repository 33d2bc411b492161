"""Both sets of operators agree: the same methods, and recorded graphs compute what the eager operators do."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from operator_cases import CASES, MANY
from operators import PAST, QKV, WEIGHTS, P, assert_recorded_is_computed
from small import B, G, H, T
from t2r_export.config.targets import TARGETS
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Recorder, Value
from t2r_export.graph.targets import FusedOps
from t2r_export.model import torch_ops
from t2r_export.model.ops import Ops
from t2r_export.model.torch_ops import TorchOps

pytestmark = pytest.mark.usefixtures("newest_opset")
TARGETS_OF_MANY = [name for name, target in TARGETS.items() if not target.static]


def public(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def test_the_same_methods() -> None:
    assert public(TorchOps) == public(Ops)
    for target in TARGETS.values():
        cls = type(target.ops(WEIGHTS, "B", None))
        assert public(cls) - public(Ops) == public(Recorder) - public(Ops), "how a graph is written, nothing to compute"
    own = {name for cls in GraphOps.__mro__ if cls not in Ops.__mro__ for name in vars(cls)}
    assert Ops.__abstractmethods__ <= own


def test_the_same_arguments() -> None:
    for name in public(Ops):
        for cls in (TorchOps, GraphOps, FusedOps):
            ours, theirs = (list(inspect.signature(getattr(c, name)).parameters) for c in (Ops, cls))
            assert ours == theirs, (name, cls)


def test_every_operator_has_a_case() -> None:
    assert {case.split(":")[0] for case in CASES | MANY} == public(Ops)


def test_token_operators_cover_both_modes() -> None:
    of_one, of_many = ({case.split(":")[0] for case in cases} for cases in (CASES, MANY))
    alone = {"blocks", "unblock", "causal_mask", "lstm", "gru", "linear_attention_chunks", "linear_recurrence_many"}
    alone |= {"complex_recurrence_many"}
    looking = {name for name in public(Ops) if "self.many" in inspect.getsource(getattr(GraphOps, name))}
    assert looking | alone <= of_many
    assert looking <= of_one
    assert not alone & of_one


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_recorded_is_computed(case: str, target: str) -> None:
    build, inputs = CASES[case]
    assert_recorded_is_computed(build, *inputs, target=target)


@pytest.mark.parametrize("target", TARGETS_OF_MANY)
@pytest.mark.parametrize("case", MANY)
def test_recorded_is_computed_of_many_tokens(case: str, target: str) -> None:
    build, inputs = MANY[case]
    assert_recorded_is_computed(build, *inputs, many=True, target=target)


def test_how_many_tokens_are_read() -> None:
    assert [TorchOps(tokens).many for tokens in (None, 1, T)] == [False, True, True]
    assert [GraphOps(WEIGHTS, "B", tokens).many for tokens in (None, "T")] == [False, True]


@torch.no_grad()
@pytest.mark.parametrize("case", ["causal_attention: past", "causal_attention: past and softcap"])
def test_a_token_does_not_see_those_behind_it(case: str) -> None:
    build, inputs = MANY[case]
    ops = TorchOps(T)
    before = build(ops, WEIGHTS, inputs)
    changed = [inputs[0], *(torch.cat([x[:, :, :4], x[:, :, 4:] + 1], 2) for x in inputs[1:3]), *inputs[3:]]
    after = build(ops, WEIGHTS, changed)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert ((before - after)[:, :, 4:].abs().amax((1, 3)) > 1e-3).all()


@torch.no_grad()
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_attention_is_its_definition(softcap: float | None) -> None:
    """Head by head and token by token: queries of a group share its keys, and the last T of P + T are new."""
    q, new_k, new_v = (x.double() for x in QKV)
    k, v = (torch.cat([past.double(), new], 2) for past, new in zip(PAST, (new_k, new_v), strict=True))
    o = TorchOps(T, q).causal_attention(q, k, v, 0.7, softcap)
    for b, h, t in np.ndindex(B, H, T):
        seen, group = P + t + 1, h // (H // G)
        scores = 0.7 * k[b, group, :seen] @ q[b, h, t]
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        torch.testing.assert_close(o[b, h, t], scores.softmax(0) @ v[b, group, :seen])


def test_what_cannot_be_is_refused() -> None:
    ops = GraphOps(WEIGHTS, "B")
    x, y = Value("x", "float32", ("B", 3, 4)), Value("y", "float32", ("B", 5, 4))
    for wrong in (
        lambda: ops.add(x, y),
        lambda: ops.matmul(x, y),
        lambda: ops.linear(x, WEIGHTS.weight, None),
        lambda: ops.reshape(x, (0, 5, -1)),
        lambda: ops.squeeze(x, 1),
    ):
        with pytest.raises(AssertionError):
            wrong()


@pytest.mark.parametrize("most", [0, 100])  # torch's own kernel; matrix products
@pytest.mark.parametrize("case", ["causal_attention", "causal_attention: past"])
def test_attention_in_bfloat16(case: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, with fewer kv heads than heads."""
    monkeypatch.setattr(torch_ops, "PRODUCTS", most)
    build, inputs = MANY[case]
    found = []
    for dtype in (torch.bfloat16, torch.float32, torch.float64):  # float32: by autocast
        given = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            y = build(TorchOps(T), WEIGHTS, given)
        assert y.dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
        y.sin().sum().backward()
        found.append([y.detach(), *(x.grad for x in given)])
    for *narrow, exact in zip(*found, strict=True):
        for x in narrow:
            torch.testing.assert_close(x.double(), exact, rtol=0.02, atol=0.02)
