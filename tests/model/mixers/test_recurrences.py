"""The update rules: chunked and stepped against the NumPy definition and ONNX's own conformance tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from t2r_export.model import reference
from t2r_export.model.mixers.recurrences import RECURRENCES, Recurrence, chunk_size

RULES = list(RECURRENCES)
GATED = [name for name, rule in RECURRENCES.items() if rule.gated]
DECAYS = {"weak": 1e-3, "middling": 1.0, "strong": 40.0, "to nothing": 2000.0}  # largest -log g

sizes = st.fixed_dictionaries(
    {name: st.integers(1, 3) for name in ("B", "G", "R", "K", "V")}
    | {"T": st.integers(1, 12), "chunk": st.none() | st.integers(1, 13)}
)


def inputs(
    rule: Recurrence, decay: float = 1.0, seed: int = 0, B: int = 2, T: int = 7, G: int = 3, R: int = 2, K: int = 5,
    V: int = 4,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """q, k of length 1, v, S, log g from 0 to -decay (some of them nearly 0), β from 0 to 1; float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, T, G * R, K), (B, T, G, K), (B, T, G, V), (B, G, K, V)]
    q, k, v, S = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    log_gate, beta = (torch.rand(B, T, G, generator=generator, dtype=torch.float64) for _ in range(2))
    k = torch.nn.functional.normalize(k.relu() + 0.1, dim=-1)
    return q, k, v, S, -decay * log_gate**4 if rule.gated else None, beta if rule.delta else None


def arrays(tensors: Any) -> list[Any]:
    return [None if t is None else t.double().numpy() for t in tensors]


def by_steps(rule: Recurrence, tensors: Any) -> tuple[Tensor, Tensor]:
    """`parallel`, one step a token."""
    q, k, v, S, log_gate, beta = tensors
    o = []
    for t in range(q.shape[1]):
        kept = None if log_gate is None else log_gate[:, t].reshape(*S.shape[:2], -1, 1)
        rate = None if beta is None else beta[:, t, :, None, None]
        out, _, S, _ = rule.step(q[:, t], k[:, t], v[:, t], S, None, kept, rate)
        o.append(out.flatten(1, 2))
    return torch.stack(o, 1), S


@settings(max_examples=40)
@given(st.sampled_from(RULES), st.sampled_from(list(DECAYS)), sizes, st.integers(0, 99))
def test_chunked_and_steps_are_the_definition(name: str, decay: str, case: dict[str, Any], seed: int) -> None:
    chunk, rule = case["chunk"], RECURRENCES[name]
    tensors = inputs(rule, DECAYS[decay], seed, **{key: size for key, size in case.items() if key != "chunk"})
    expected = reference.recurrence(*arrays(tensors))
    for wide, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        narrow = [None if t is None else t.to(wide) for t in tensors]
        for outputs in (rule.parallel(*narrow, chunk=chunk), by_steps(rule, narrow)):
            for received, wanted in zip(outputs, expected, strict=True):
                assert received.dtype == wide
                np.testing.assert_allclose(received.numpy(), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=20)
@given(st.sampled_from(RULES), st.integers(1, 39))
def test_split_is_whole(name: str, at: int) -> None:
    """One text of 40 tokens in two parts, and whole; chunks of 16."""
    rule = RECURRENCES[name]
    q, k, v, S, *rest = inputs(rule, T=40)
    whole, end = rule.parallel(q, k, v, S, *rest, chunk=16)
    first, S = rule.parallel(*(x[:, :at] for x in (q, k, v)), S, *(None if x is None else x[:, :at] for x in rest), 16)
    second, S = rule.parallel(*(x[:, at:] for x in (q, k, v)), S, *(None if x is None else x[:, at:] for x in rest), 16)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(S, end, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GATED)
def test_a_weak_decay_behind_a_strong_one_keeps_its_precision(name: str) -> None:
    """In one chunk of float32, cumulative sums past 10⁵ would have steps of 0.008."""
    rule = RECURRENCES[name]
    tensors = list(inputs(rule, T=16))
    log_gate = torch.full_like(tensors[4], -0.05)  # type: ignore[arg-type]
    log_gate[:, 3] = -1e5
    tensors[4] = log_gate
    expected = reference.recurrence(*arrays(tensors))
    received = rule.parallel(*(None if t is None else t.float() for t in tensors), chunk=16)  # type: ignore[arg-type]
    for value, wanted in zip(received, expected, strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_gradients_are_those_of_the_steps(name: str) -> None:
    """Decays to nothing too: no inf times 0 on the way back."""
    rule = RECURRENCES[name]
    gradients = []
    for form in (lambda t: rule.parallel(*t, chunk=3), lambda t: by_steps(rule, t)):
        tensors = inputs(rule, decay=2000.0)
        leaves = [t.requires_grad_() for t in tensors if t is not None]
        o, S = form(tensors)
        (o.square().sum() + S.square().sum()).backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert len(gradients[0]) == 4 + rule.gated + rule.delta
    for chunked, stepped in zip(*gradients, strict=True):
        assert chunked.abs().sum() > 0
        torch.testing.assert_close(chunked, stepped, rtol=1e-9, atol=1e-9)


def test_a_rule_takes_what_is_its_own() -> None:
    q, k, v, S, log_gate, beta = inputs(RECURRENCES["gated_delta"])
    for name, rule in RECURRENCES.items():
        if name != "gated_delta":
            with pytest.raises(AssertionError, match="a gate and beta as the rule has them"):
                rule.parallel(q, k, v, S, log_gate, beta)


@pytest.mark.parametrize("name", RULES)
def test_states_stay_float32_under_autocast(name: str) -> None:
    narrow = [None if t is None else t.bfloat16() for t in inputs(RECURRENCES[name])]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for value in RECURRENCES[name].parallel(*narrow):
            assert value.dtype == torch.float32


def test_chunk_size_is_a_power_of_two_in_bounds() -> None:
    for size, expected in (((5, 4, 2), 16), ((16, 8, 2), 16), ((64, 64, 1), 64), ((128, 128, 1), 128)):
        assert chunk_size(*size) == expected
    assert chunk_size(1, 1, 100) == 16
    assert chunk_size(1 << 20, 1 << 20, 1) == 128


def test_the_delta_rule_replaces_what_a_key_held() -> None:
    """With β = 1, a key of length 1 reads back exactly the last value written under it (2102.11174, section 4.2)."""
    keys = torch.eye(3, dtype=torch.float64)[None, [0, 1, 2, 1], None]
    values = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]], dtype=torch.float64)[None, :, None]
    empty, ones = torch.zeros(1, 1, 3, 2, dtype=torch.float64), torch.ones(1, 4, 1, dtype=torch.float64)
    _, S = RECURRENCES["delta"].parallel(keys, keys, values, empty, None, ones)
    assert S[0, 0].tolist() == [[1, 2], [7, 8], [5, 6]]
    _, S = RECURRENCES["linear"].parallel(keys, keys, values, empty)
    assert S[0, 0].tolist() == [[1, 2], [10, 12], [5, 6]]


# -- the conformance tensors of ONNX's operator

CONFORMANCE = [
    "decode_step", "delta", "explicit_scale", "fp16", "gated", "gated_delta", "gated_delta_beta_scalar",
    "gated_delta_gqa", "gated_delta_mqa", "gated_per_head_decay", "linear", "linear_t1_no_past",
    "no_past_explicit_zeros", "prefill_with_past",
]  # fmt: skip


def array(file: Path) -> Tensor:
    return torch.tensor(onnx.numpy_helper.to_array(onnx.load_tensor(file)).astype(np.float64))


def conformance(folder: Path) -> tuple[str, list[Tensor | None], list[Tensor], bool]:
    """A case as (rule, our arguments, expected o and S, a decay a head). The operator's scale goes into q."""
    node = onnx.load(folder / "model.onnx").graph.node[0]
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"))
    values = iter(
        [torch.tensor(onnx.numpy_helper.to_array(onnx.load_tensor(file)).astype(np.float64)) for file in files]
    )
    named = {name: next(values) for name in [*node.input] if name}
    H, G = given["q_num_heads"], given["kv_num_heads"]
    q, k, v = (named[name].unflatten(-1, (heads, -1)) for name, heads in (("query", H), ("key", G), ("value", G)))
    K = q.shape[-1]
    S = named.get("past_state", torch.zeros(len(q), G, K, v.shape[-1], dtype=torch.float64))
    log_gate, beta = named.get("decay"), named.get("beta")
    a_head = log_gate is None or log_gate.shape[-1] == G
    if not a_head:
        assert log_gate is not None
        log_gate = log_gate.unflatten(-1, (G, K))
    beta = None if beta is None else beta.expand(-1, -1, G)
    expected = [array(folder / "test_data_set_0" / f"output_{i}.pb") for i in range(2)]
    arguments = [q * (given.get("scale") or K**-0.5), k, v, S, log_gate, beta]
    return given.get("update_rule", b"gated_delta").decode(), arguments, expected, a_head


@pytest.mark.parametrize("case", CONFORMANCE)
def test_conformance_of_steps_and_of_the_definition(case: str, data: Path) -> None:
    rule, arguments, (o, S), _ = conformance(data / "onnx-node-tests" / f"test_linear_attention_{case}")
    tolerance = 5e-3 if case == "fp16" else 2e-6
    for outputs in (by_steps(RECURRENCES[rule], arguments), reference.recurrence(*arrays(arguments))):
        for received, expected in zip(outputs, (o.unflatten(-1, (arguments[0].shape[2], -1)), S), strict=True):
            np.testing.assert_allclose(np.asarray(received), expected.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", ["delta", "gated_per_head_decay", "linear", "linear_t1_no_past"])
def test_conformance_of_chunks(case: str, data: Path) -> None:
    """The cases whose decay is one number a head, as ours are."""
    rule, arguments, (o, S), a_head = conformance(data / "onnx-node-tests" / f"test_linear_attention_{case}")
    assert a_head
    for chunk in (None, 2, 3):
        received, end = RECURRENCES[rule].parallel(*arguments, chunk=chunk)  # type: ignore[arg-type]
        torch.testing.assert_close(received.flatten(2), o, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(end, S, rtol=2e-6, atol=2e-6)


def test_no_conformance_case_is_forgotten(data: Path) -> None:
    found = {folder.name.removeprefix("test_linear_attention_") for folder in (data / "onnx-node-tests").iterdir()}
    assert found == set(CONFORMANCE)
    per_head = [c for c in CONFORMANCE if conformance(data / "onnx-node-tests" / f"test_linear_attention_{c}")[3]]
    assert per_head == ["delta", "gated_per_head_decay", "linear", "linear_t1_no_past"]
