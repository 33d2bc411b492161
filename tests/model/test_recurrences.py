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

import reference
from t2r_export.model.chunks import chunk_size, chunked_linear_attention
from t2r_export.model.ops import update_rule
from t2r_export.model.torch_ops import TorchOps

RULES = ["linear", "gated", "delta", "gated_delta"]
GATED = ["gated", "gated_delta"]
DECAYS = {"weak": 1e-3, "middling": 1.0, "strong": 40.0, "to nothing": 2000.0}  # largest -log g

sizes = st.fixed_dictionaries(
    {name: st.integers(1, 3) for name in ("B", "G", "R", "K", "V")}
    | {"T": st.integers(1, 12), "chunk": st.none() | st.integers(1, 13)}
)


def inputs(
    rule: str, decay: float = 1.0, seed: int = 0, B: int = 2, T: int = 7, G: int = 3, R: int = 2, K: int = 5,
    V: int = 4,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """q, k of length 1, v, S, log g from 0 to -decay (some of them nearly 0), β from 0 to 1; float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(B, G * R, T, K), (B, G, T, K), (B, G, T, V), (B, G, K, V)]
    q, k, v, S = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    log_gate, beta = (torch.rand(B, G, T, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    k = torch.nn.functional.normalize(k.relu() + 0.1, dim=-1)
    return q, k, v, S, -decay * log_gate**4 if "gated" in rule else None, beta if "delta" in rule else None


def by_definition(tensors: Any) -> tuple[np.ndarray, np.ndarray]:
    """o (B, H, T, V) and S after, by reference, which has the tokens in front of the heads."""
    q, k, v, S, *gates = (None if t is None else t.double().numpy() for t in tensors)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    per_head = [None if x is None else x.swapaxes(1, 2) for x in gates]
    log_gate, beta = (x[..., 0] if x is not None and x.shape[-1] == 1 else x for x in per_head)
    o, S = reference.recurrence(q, k, v, S, log_gate, beta)
    return o.swapaxes(1, 2), S


def in_chunks(*arguments: Any, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """`chunked_linear_attention` without a normalizer."""
    o, _, S, _ = chunked_linear_attention(*arguments, chunk=chunk)
    return o, S


def by_steps(tensors: Any) -> tuple[Tensor, Tensor]:
    """`chunked_linear_attention`, one step a token."""
    q, k, v, S, log_gate, beta = tensors
    o = []
    for t in range(q.shape[2]):
        here = [None if x is None else x[:, :, t : t + 1] for x in (q, k, v, log_gate, beta)]
        out, sums, S, z = TorchOps().linear_attention(here[0], here[1], here[2], S, None, here[3], here[4])
        assert sums is z is None
        o.append(out)
    return torch.cat(o, 2), S


@settings(max_examples=40)
@given(st.sampled_from(RULES), st.sampled_from(list(DECAYS)), sizes, st.integers(0, 99))
def test_chunked_and_steps_are_the_definition(rule: str, decay: str, case: dict[str, Any], seed: int) -> None:
    tensors = inputs(rule, DECAYS[decay], seed, **{key: size for key, size in case.items() if key != "chunk"})
    expected = by_definition(tensors)
    for wide, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        narrow = [None if t is None else t.to(wide) for t in tensors]
        for outputs in (in_chunks(*narrow, chunk=case["chunk"]), by_steps(narrow)):
            for received, wanted in zip(outputs, expected, strict=True):
                assert received.dtype == wide
                np.testing.assert_allclose(received.numpy(), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=20)
@given(st.sampled_from(RULES), st.integers(1, 39))
def test_split_is_whole(rule: str, at: int) -> None:
    """One text of 40 tokens in two parts, and whole; chunks of 16."""
    q, k, v, S, *rest = inputs(rule, T=40)
    whole, end = in_chunks(q, k, v, S, *rest, chunk=16)
    out = []
    for part in (slice(at), slice(at, None)):
        here = [None if x is None else x[:, :, part] for x in (q, k, v, *rest)]
        y, S = in_chunks(*here[:3], S, *here[3:], chunk=16)
        out.append(y)
    torch.testing.assert_close(torch.cat(out, 2), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(S, end, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", GATED)
def test_weak_decay_after_strong_decay_precision(rule: str) -> None:
    """In one chunk of float32, cumulative sums past 10⁵ would have steps of 0.008."""
    tensors = list(inputs(rule, T=16))
    log_gate = torch.full_like(tensors[4], -0.05)  # type: ignore[arg-type]
    log_gate[:, :, 3] = -1e5
    tensors[4] = log_gate
    expected = by_definition(tensors)
    received = in_chunks(*(None if t is None else t.float() for t in tensors), chunk=16)
    for value, wanted in zip(received, expected, strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_the_steps(rule: str) -> None:
    """Also with decays to nothing: no inf times 0 in the backward pass."""
    gradients = []
    for form in (lambda t: in_chunks(*t, chunk=3), by_steps):
        tensors = inputs(rule, decay=2000.0)
        leaves = [t.requires_grad_() for t in tensors if t is not None]
        o, S = form(tensors)
        (o.square().sum() + S.square().sum()).backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert len(gradients[0]) == 4 + ("gated" in rule) + ("delta" in rule)
    for chunked, stepped in zip(*gradients, strict=True):
        assert chunked.abs().sum() > 0
        torch.testing.assert_close(chunked, stepped, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_given_makes_the_rule(rule: str) -> None:
    *_, log_gate, beta = inputs(rule)
    assert update_rule(log_gate, beta) == rule


@pytest.mark.parametrize("rule", ["linear", "gated"])
def test_normalizer_equals_state_of_ones(rule: str) -> None:
    """T tokens with z, also with one gate for all, against steps and sums of ones."""
    q, k, v, S, log_gate, _ = inputs(rule)
    z = torch.rand(S.shape[:3], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for gate in [log_gate] if log_gate is None else [log_gate, log_gate[:1, :, :1]]:
        o, sums, S_after, z_after = TorchOps(q.shape[2]).linear_attention(q, k, v, S, z, gate)
        each = None if gate is None else gate.expand(*v.shape[:3], 1)
        expected = in_chunks(q, k, v, S, each)
        ones = in_chunks(q, k, torch.ones_like(v[..., :1]), z[..., None], each)
        assert sums is not None and z_after is not None
        for received, wanted in (
            (o, expected[0]),
            (S_after, expected[1]),
            (sums, ones[0]),
            (z_after[..., None], ones[1]),
        ):
            torch.testing.assert_close(received, wanted, rtol=1e-12, atol=1e-12)
        state: tuple[Tensor, Tensor | None] = S, z
        for t in range(q.shape[2]):
            here = None if each is None else (gate if gate.shape[2] == 1 else each[:, :, t : t + 1])
            y, total, *state = TorchOps().linear_attention(*(x[:, :, t : t + 1] for x in (q, k, v)), *state, here)
            torch.testing.assert_close(y, o[:, :, t : t + 1], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(total, sums[:, :, t : t + 1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state[1], z_after, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_states_stay_float32_under_autocast(rule: str) -> None:
    narrow = [None if t is None else t.bfloat16() for t in inputs(rule)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for value in in_chunks(*narrow):
            assert value.dtype == torch.float32


def test_chunk_size_is_a_power_of_two_in_bounds() -> None:
    for size, expected in (((5, 4, 2), 16), ((16, 8, 2), 16), ((64, 64, 1), 64), ((128, 128, 1), 128)):
        assert chunk_size(*size) == expected
    assert chunk_size(1, 1, 100) == 16
    assert chunk_size(1 << 20, 1 << 20, 1) == 128


def test_the_delta_rule_replaces_what_a_key_held() -> None:
    """With β = 1, a key of length 1 reads back exactly the last value written under it (2102.11174, section 4.2)."""
    keys = torch.eye(3, dtype=torch.float64)[None, None, [0, 1, 2, 1]]
    values = torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]], dtype=torch.float64)[None, None]
    empty, ones = torch.zeros(1, 1, 3, 2, dtype=torch.float64), torch.ones(1, 1, 4, 1, dtype=torch.float64)
    _, S = in_chunks(keys, keys, values, empty, None, ones)
    assert S[0, 0].tolist() == [[1, 2], [7, 8], [5, 6]]
    _, S = in_chunks(keys, keys, values, empty)
    assert S[0, 0].tolist() == [[1, 2], [10, 12], [5, 6]]


# -- the conformance tensors of ONNX's operator

CONFORMANCE = [
    "decode_step", "delta", "explicit_scale", "fp16", "gated", "gated_delta", "gated_delta_beta_scalar",
    "gated_delta_gqa", "gated_delta_mqa", "gated_per_head_decay", "linear", "linear_t1_no_past",
    "no_past_explicit_zeros", "prefill_with_past",
]  # fmt: skip


def array(file: Path) -> Tensor:
    return torch.tensor(onnx.numpy_helper.to_array(onnx.load_tensor(file)).astype(np.float64))


def by_head(x: Tensor, heads: int) -> Tensor:
    """x (B, T, heads · size) -> (B, heads, T, size)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def conformance(folder: Path) -> tuple[str, list[Tensor | None], list[Tensor]]:
    """A case as (rule, our arguments, expected o and S). The operator's scale goes into q."""
    node = onnx.load(folder / "model.onnx").graph.node[0]
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"))
    values = iter(
        [torch.tensor(onnx.numpy_helper.to_array(onnx.load_tensor(file)).astype(np.float64)) for file in files]
    )
    named = {name: next(values) for name in [*node.input] if name}
    H, G = given["q_num_heads"], given["kv_num_heads"]
    q, k, v = (by_head(named[name], heads) for name, heads in (("query", H), ("key", G), ("value", G)))
    K = q.shape[-1]
    S = named.get("past_state", torch.zeros(len(q), G, K, v.shape[-1], dtype=torch.float64))
    log_gate, beta = named.get("decay"), named.get("beta")
    log_gate = None if log_gate is None else by_head(log_gate, G)  # (B, G, T, 1 or K)
    beta = None if beta is None else by_head(beta.expand(-1, -1, G), G)
    o, S_after = (array(folder / "test_data_set_0" / f"output_{i}.pb") for i in range(2))
    arguments = [q * (given.get("scale") or K**-0.5), k, v, S, log_gate, beta]
    return given.get("update_rule", b"gated_delta").decode(), arguments, [by_head(o, H), S_after]


@pytest.mark.parametrize("case", CONFORMANCE)
def test_steps_match_definition(case: str, data: Path) -> None:
    rule, arguments, expected = conformance(data / "onnx-node-tests" / f"test_linear_attention_{case}")
    assert update_rule(*arguments[4:]) == rule
    tolerance = 5e-3 if case == "fp16" else 2e-6
    for outputs in (by_steps(arguments), by_definition(arguments)):
        for received, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(np.asarray(received), wanted.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CONFORMANCE)
def test_conformance_of_chunks(case: str, data: Path) -> None:
    _, arguments, (o, S) = conformance(data / "onnx-node-tests" / f"test_linear_attention_{case}")
    tolerance = 5e-3 if case == "fp16" else 2e-6
    for chunk in (None, 2, 3):
        received, end = in_chunks(*arguments, chunk=chunk)
        torch.testing.assert_close(received, o, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(end, S, rtol=tolerance, atol=tolerance)


def test_no_conformance_case_is_forgotten(data: Path) -> None:
    found = {folder.name.removeprefix("test_linear_attention_") for folder in (data / "onnx-node-tests").iterdir()}
    assert found == set(CONFORMANCE)
