"""Every update rule with separate head counts: steps, a sequence and chunks of any size equal the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rules
from rules import DECAYS, RULES, SHARED
from t2r_export.model.chunks import chunked_linear_attention, scanned
from t2r_export.model.decays import halves
from t2r_export.model.torch_ops import TorchOps

CHANNELS = [name for name, rule in RULES.items() if rule.decay == "channel"]


def by_steps(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    S, o = given["S"], []
    for t in range(given["v"].shape[2]):
        here = rules.tokens(given, slice(t, t + 1)) | {"S": S}
        y, _, S, _ = TorchOps().linear_attention(**here)
        o.append(y)
    return torch.cat(o, dim=2), S


def by_sequence(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    o, _, S, _ = TorchOps(given["v"].shape[2]).linear_attention(**given)
    return o, S


def by_chunks(given: dict[str, Any], chunk: int) -> tuple[Tensor, Tensor]:
    """Called as `Ops.linear_attention_chunks`: a key head for each head of the state."""
    ops, heads = TorchOps(), given["S"].shape[1]
    q, k = (ops.repeat_heads(x, max(heads, x.shape[1])) for x in (given["q"], given["k"]))
    rest = (given.get(name) for name in ("log_gate", "beta", "erase"))
    return chunked_linear_attention(q, k, given["v"], given["S"], *rest, chunk=chunk)[::2]


cases = st.tuples(st.sampled_from(list(RULES)), st.sampled_from(list(SHARED)))


@settings(max_examples=60)
@given(cases, st.sampled_from(list(DECAYS)), st.integers(1, 21), st.integers(1, 22), st.integers(0, 99))
def test_all_forms_are_the_definition(case: tuple[str, str], decay: str, T: int, chunk: int, seed: int) -> None:
    given = rules.inputs(*case, T, decay, seed)
    expected = rules.definition(given)
    for wide, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        narrow = rules.mapped(given, lambda x, wide=wide: x.to(wide))
        for outputs in (by_steps(narrow), by_sequence(narrow), by_chunks(narrow, chunk)):
            for received, wanted in zip(outputs, expected, strict=True):
                assert received.dtype == wide
                np.testing.assert_allclose(received.numpy(), wanted, rtol=tolerance, atol=tolerance)


@settings(max_examples=20)
@given(cases, st.integers(1, 29))
def test_split_is_whole(case: tuple[str, str], at: int) -> None:
    given = rules.inputs(*case, 30)
    whole, end = by_chunks(given, 16)
    first, S = by_sequence(rules.tokens(given, slice(at)))
    second, S = by_sequence(rules.tokens(given, slice(at, None)) | {"S": S})
    torch.testing.assert_close(torch.cat([first, second], 2), whole, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(S, end, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rule", CHANNELS)
def test_weak_decay_after_strong_decay_precision(rule: str) -> None:
    """In one chunk of float32, where cumulative sums past 10⁵ would have steps of 0.008."""
    given = rules.inputs(rule, "own", 32)
    given["log_gate"] = torch.full_like(given["log_gate"], -0.05)
    given["log_gate"][:, :, 3, 1:3] = -1e5
    expected = rules.definition(given)
    received = by_chunks(rules.mapped(given, torch.Tensor.float), 32)
    for value, wanted in zip(received, expected, strict=True):
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("rule", [*CHANNELS, "erase"])
def test_gradients_are_those_of_the_steps(rule: str) -> None:
    gradients = []
    for form in (by_steps, lambda given: by_chunks(given, 3)):
        given = rules.inputs(rule, "shared", 7, "to nothing")
        leaves = [x for name, x in given.items() if isinstance(x, Tensor)] + [*given.get("erase", ())]
        for leaf in leaves:
            leaf.requires_grad_()
        o, S = form(given)
        (o.square().sum() + S.square().sum()).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for stepped, chunked in zip(*gradients, strict=True):
        assert chunked.abs().sum() > 0
        torch.testing.assert_close(chunked, stepped, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not (rule.delta or rule.erase)])
@pytest.mark.parametrize("heads", SHARED)
def test_normalizer_equals_state_of_ones(rule: str, heads: str) -> None:
    given = rules.inputs(rule, heads, 9)
    z = torch.rand(given["S"].shape[:3], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ones = given | {"v": torch.ones_like(given["v"][..., :1]), "S": z[..., None]}
    sums, end = rules.definition(ones)
    ops = TorchOps(9)
    _, denominator, _, after = ops.linear_attention(**(given | {"z": z}))
    alone = ops.normalizer(given["q"], given["k"], z, given.get("log_gate"))
    for received in ((denominator, after), alone):
        np.testing.assert_allclose(received[0], sums, rtol=1e-11)
        np.testing.assert_allclose(received[1], end[..., 0], rtol=1e-11)
    for t in range(9):
        here = rules.tokens(given, slice(t, t + 1))
        denominator, z = TorchOps().normalizer(here["q"], here["k"], z, here.get("log_gate"))
        np.testing.assert_allclose(denominator[:, :, 0], sums[:, :, t], rtol=1e-11)
    np.testing.assert_allclose(z, end[..., 0], rtol=1e-11)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_the_erase_rule_contains_the_delta_rule(decay: str) -> None:
    rule = "gated_delta" if decay == "head" else "gated_delta, channel"
    delta = rules.inputs(rule, "own", 11)
    beta, k = delta["beta"], delta["k"]
    erase = {name: x for name, x in delta.items() if name != "beta"} | {"v": beta * delta["v"]}
    erase["erase"] = rules.Erase(k, -beta * k)
    for received, wanted in zip(by_sequence(erase), by_sequence(delta), strict=True):
        torch.testing.assert_close(received, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 13, 16])
def test_halves_meet_every_pair_once(size: int) -> None:
    """Gates from both tokens to the middle together are those between the two."""
    pairs = sum((found for found, _ in halves(size)), np.eye(size))
    np.testing.assert_array_equal(pairs, np.tri(size))
    for found, sums in halves(size):
        for i, j in np.argwhere(found):
            between = (np.arange(size) > j) & (np.arange(size) <= i)
            np.testing.assert_array_equal(sums[i] + sums[j], between)


@settings(max_examples=30)
@given(st.sampled_from(list(DECAYS)), st.integers(1, 40), st.integers(0, 99))
def test_a_linear_recurrence_is_its_definition(decay: str, T: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, share = torch.randn(2, 2, T, 5, generator=generator, dtype=torch.float64)
    state, log_gate = torch.randn(2, 5, generator=generator, dtype=torch.float64), -DECAYS[decay] * share.sigmoid() ** 4
    y, expected = state.numpy(), []
    for t in range(T):
        y = np.exp(log_gate[:, t].numpy()) * y + x[:, t].numpy()
        expected.append(y)
    wanted = np.stack(expected, axis=1)
    for wide, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        narrow = [rows.to(wide) for rows in (x, log_gate, state)]
        received = scanned(*narrow)
        assert received.dtype == wide
        np.testing.assert_allclose(received.numpy(), wanted, rtol=tolerance, atol=tolerance)
        many, after = TorchOps(T).linear_recurrence(narrow[0].flatten(0, 1), narrow[1].flatten(0, 1), narrow[2])
        np.testing.assert_allclose(many.view(2, T, 5).numpy(), wanted, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(after.numpy(), wanted[:, -1], rtol=tolerance, atol=tolerance)
        stepped = narrow[2]
        for t in range(T):
            row, stepped = TorchOps().linear_recurrence(narrow[0][:, t], narrow[1][:, t], stepped)
            np.testing.assert_allclose(row.numpy(), wanted[:, t], rtol=tolerance, atol=tolerance)


def test_linear_recurrence_gradients_match_steps() -> None:
    gradients = []
    for T in (None, 9):
        generator = torch.Generator().manual_seed(0)
        x, log_gate = torch.randn(2, 2, 9, 5, generator=generator, dtype=torch.float64)
        leaves = [x, -(8 * log_gate).exp(), torch.randn(2, 5, generator=generator, dtype=torch.float64)]
        for leaf in leaves:
            leaf.requires_grad_()
        if T is None:
            y, rows = leaves[2], []
            for t in range(9):
                row, y = TorchOps().linear_recurrence(leaves[0][:, t], leaves[1][:, t], y)
                rows.append(row)
            result = torch.stack(rows, 1)
        else:
            result = TorchOps(T).linear_recurrence(leaves[0].flatten(0, 1), leaves[1].flatten(0, 1), leaves[2])[0]
        result.square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for stepped, scanned_all in zip(*gradients, strict=True):
        assert stepped.abs().sum() > 0
        torch.testing.assert_close(scanned_all, stepped, rtol=1e-9, atol=1e-9)


class Largest(TorchDispatchMode):
    """Element count of the largest tensor that any operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


@pytest.mark.parametrize("rule", RULES)
def test_memory_is_linear_in_the_tokens(rule: str) -> None:
    """Chunk scores and gate factors have a row for each token; no tensor has C · C · K numbers."""
    chunk, found = 16, []
    for T in (64, 128):
        given = rules.inputs(rule, "own", T)
        with Largest() as largest:
            by_chunks(given, chunk)
        assert largest.numbers <= rules.B * rules.HEADS * T * 2 * chunk
        found.append(largest.numbers)
    assert found[1] <= 2 * found[0]
