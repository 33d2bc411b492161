"""The gate of a mixture with neighbours, g = σ(w·h) of SPALM (Yogatama et al. 2021, arXiv 2102.02557), in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import small
from small import GPT2, WIDTH
from t2r_runtime import Datastore, Decoder, Retrieving
from t2r_runtime.decode.gate import Gate
from t2r_runtime.decode.score import score
from t2r_runtime.errors import UserError
from t2r_runtime.session import archive

Array = NDArray[Any]
TEXT, OTHER = [3, 5, 7, 11, 4, 3, 5, 7, 2, 9], [9, 3, 5, 7, 2, 4, 3, 5, 7, 11, 6]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    out = tmp_path_factory.mktemp("gate") / "g.onnx"
    small.graph(out, GPT2, output_hidden=True, prefill=True)
    return Decoder(out)


def a_gate(seed: int) -> Gate:
    random = np.random.default_rng(seed)
    return Gate(random.normal(size=WIDTH), random.normal())


def likelihood(gate: Gate, hidden: Array, own: Array, near: Array, penalty: float) -> float:
    """The objective of `fit`, by definition."""
    share = 1 / (1 + np.exp(-(hidden @ gate.weight + gate.bias)))
    spread = hidden.std(0)
    found = np.log(share * np.exp(near) + (1 - share) * np.exp(own)).sum()
    return float(found - penalty / 2 * ((gate.weight * spread) ** 2).sum())


def places(seed: int, count: int = 40, size: int = 3) -> tuple[Array, Array, Array]:
    """Hidden states and log-probabilities of the next tokens; for every third, neighbours give none."""
    random = np.random.default_rng(seed)
    hidden, (own, near) = random.normal(2, 3, (count, size)), np.log(random.uniform(0.01, 1, (2, count)))
    near[::3] = -np.inf
    return hidden, own, near


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(0, 60), st.sampled_from([0.0, 0.5, 4.0]))
def test_a_step_never_makes_it_worse(seed: int, steps: int, penalty: float) -> None:
    data = places(seed)
    before, after = (likelihood(Gate.fit(*data, n, penalty), *data, penalty) for n in (steps, steps + 1))
    assert after >= before - 1e-9


def test_it_is_the_largest() -> None:
    """No gate nearby is better, and no constant share."""
    data, random = places(7), np.random.default_rng(5)
    best = Gate.fit(*data, 3000)
    most = likelihood(best, *data, 1.0)
    for _ in range(50):
        other = Gate(best.weight + random.normal(0, 0.02, 3), best.bias + random.normal(0, 0.02))
        assert likelihood(other, *data, 1.0) < most
    assert all(likelihood(Gate(np.zeros(3), b), *data, 1.0) < most for b in np.linspace(-6, 6, 49))
    np.testing.assert_allclose(Gate.fit(*data, 0).log_shares(data[0])[0], np.log(0.25))


def test_it_finds_where_neighbours_know_better() -> None:
    hidden = np.random.default_rng(3).normal(size=(200, 4))
    knows = hidden[:, 2] > 0
    gate = Gate.fit(hidden, np.log(np.where(knows, 0.1, 0.8)), np.log(np.where(knows, 0.8, 0.1)))
    shares = np.exp(gate.log_shares(hidden.astype(np.float32))[0])
    assert shares[knows].mean() > 0.8 and shares[~knows].mean() < 0.2


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_shares_by_definition(scale: float) -> None:
    """Also where σ is 0 or 1 in float64."""
    gate, hidden = a_gate(1), np.random.default_rng(2).normal(0, scale, (5, WIDTH)).astype(np.float32)
    scores = hidden.astype(float) @ gate.weight + gate.bias
    share, rest = gate.log_shares(hidden)
    np.testing.assert_allclose(share - rest, scores, rtol=1e-9)
    np.testing.assert_allclose(np.exp(share) + np.exp(rest), 1)


@pytest.mark.parametrize("stored", [False, True])
def test_mixture_by_definition(decoder: Decoder, stored: bool) -> None:
    gate, store = a_gate(4), Datastore.of_text(decoder, TEXT)
    ids = small.ids(2, 4, 3).numpy()
    decoder.reset(batch=2)
    logits, hidden = decoder.with_hidden(ids)
    near = []
    for share in (0.0, 0.5):
        decoder.reset()
        near.append(np.exp(Retrieving(decoder, store, 3, share).prefill(ids).astype(float)))
    p_lm, p_knn = near[0], 2 * near[1] - near[0]
    np.testing.assert_allclose(p_lm, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), rtol=1e-4)
    share = (1 / (1 + np.exp(-(hidden @ gate.weight + gate.bias))))[:, np.newaxis]
    assert abs(share[0] - share[1]) > 0.01
    store.gate = gate if stored else None
    decoder.reset()
    found = Retrieving(decoder, store, 3) if stored else Retrieving(decoder, store, 3, gate)
    np.testing.assert_allclose(np.exp(found.prefill(ids)), share * p_knn + (1 - share) * p_lm, rtol=1e-3, atol=1e-6)


def test_trained_on_a_text(decoder: Decoder) -> None:
    """The gate equals `fit` on the text's log-probabilities, and beats every constant share there."""
    store = Datastore.of_text(decoder, TEXT)
    retrieving = Retrieving(decoder, store, 3, temperature=2.0)
    gate = retrieving.fit_gate(OTHER, steps=500, penalty=0.0)
    own = score(Retrieving(decoder, store, 3, 0.0, 2.0), OTHER)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log(np.maximum(2 * np.exp(score(Retrieving(decoder, store, 3, 0.5, 2.0), OTHER)) - np.exp(own), 0))
    hidden = Datastore.of_text(decoder, OTHER).keys
    expected = Gate.fit(hidden, own, np.where(near < -12, -np.inf, near), 500, 0.0)
    np.testing.assert_allclose(gate.log_shares(hidden)[0], expected.log_shares(hidden)[0], atol=1e-2)
    best = max(score(Retrieving(decoder, store, 3, share, 2.0), OTHER).sum() for share in np.linspace(0, 0.99, 12))
    assert score(Retrieving(decoder, store, 3, gate, 2.0), OTHER).sum() > best


def test_saved_with_its_datastore(decoder: Decoder, tmp_path: Path) -> None:
    store, path = Datastore.of_text(decoder, TEXT), tmp_path / "s.npz"
    store.gate = a_gate(6)
    store.save(path)
    loaded = Datastore.load(path)
    assert loaded.gate is not None and loaded.gate.bias == store.gate.bias
    np.testing.assert_array_equal(loaded.gate.weight, store.gate.weight)
    assert (loaded + loaded).gate is None
    arrays = {"keys": store.keys, "tokens": store.tokens}
    head = {"datastore": 1, "checkpoint_sha256": store.checkpoint_sha256}
    for gate in (np.zeros(1), np.zeros((2, 3)), np.array([1, np.nan]), np.zeros(3, np.float32)):
        archive.write(path, head, {**arrays, "gate": gate}, "datastore")
        with pytest.raises(UserError, match="a datastore at"):
            Datastore.load(path)


def test_refused(decoder: Decoder) -> None:
    store, data = Datastore.of_text(decoder, TEXT), places(1)
    for call, message in [
        (
            lambda: Retrieving(decoder, store, share=Gate([1.0, 2.0], 0)),
            f"a gate of {WIDTH} numbers; received one of 2",
        ),
        (lambda: Retrieving(decoder, store, share=1.5), "a share from 0"),
        (lambda: Retrieving(decoder, store).fit_gate([1]), "at least 2 tokens"),
        (lambda: Gate([], 0), "finite weights"),
        (lambda: Gate([[1.0]], 0), "finite weights"),
        (lambda: Gate([np.nan], 0), "finite weights"),
        (lambda: Gate([1.0], np.inf), "a finite number as bias"),
        (lambda: Gate("w", 0), "numbers as weights of a gate"),
        (lambda: Gate.fit(*data, -1), "steps of at least 0"),
        (lambda: Gate.fit(*data, 1, -1.0), "a penalty of at least 0"),
        (lambda: Gate.fit(data[0], data[1][1:], data[2]), r"hidden \(N, D\), own \(N,\)"),
        (lambda: Gate.fit(data[0], data[2], data[1]), "numbers that are not finite"),  # the model's own may not be 0
        (lambda: Gate.fit(data[0] * np.nan, data[1], data[2]), "numbers that are not finite"),
    ]:
        with pytest.raises(UserError, match=message):
            call()
