"""Which tokens may be sampled, and their frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2r_runtime import Sampler, Sampling, UserError

LOGITS = np.log(np.array([0.05, 0.4, 0.25, 0.2, 0.1], np.float32))

numbers = st.floats(-80, 80, width=32) | st.sampled_from([0.0, 1.0, -math.inf, 3e38, -3e38])
rows = st.lists(numbers, min_size=1, max_size=12).filter(lambda row: max(row) > -math.inf)


@given(
    row=rows,
    temperature=st.floats(0, 50) | st.sampled_from([1e-300, 1e300]),
    top_k=st.integers(0, 15),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1) | st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**64),
)
def test_only_allowed_tokens_are_chosen(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    logits = np.array(row, np.float32)
    sampler = Sampler(Sampling(temperature, top_k, top_p, seed, min_p=min_p))
    allowed = allowed_by_definition(row, temperature, top_k, top_p, min_p)
    for _ in range(5):
        assert sampler.pick(logits) in allowed


def allowed_by_definition(row: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Sort, cut at k, sum up to p, compare with the first; sums of equal weights may round to one token more."""
    order = sorted(range(len(row)), key=lambda token: -row[token])
    if temperature == 0:
        return {order[0]}
    weights = {t: math.exp((row[t] - row[order[0]]) / temperature) for t in order[: top_k or None]}
    allowed, before = set(), 0.0
    for token, weight in weights.items():
        likely = weight > 0 and weight >= min_p * (1 - 1e-12)
        if likely and before < top_p * sum(weights.values()) * (1 + 1e-12):
            allowed.add(token)
        before += weight
    return allowed


@pytest.mark.parametrize(
    "rules, expected",
    [
        ({}, [0.05, 0.4, 0.25, 0.2, 0.1]),
        ({"temperature": 0.5}, [0.0025, 0.16, 0.0625, 0.04, 0.01]),
        ({"top_k": 2}, [0, 0.4, 0.25, 0, 0]),
        ({"top_p": 0.7}, [0, 0.4, 0.25, 0.2, 0]),
        ({"top_k": 3, "top_p": 0.7}, [0, 0.4, 0.25, 0, 0]),  # 0.4 + 0.25 is 76 % of the three kept
        ({"temperature": 2.0, "top_k": 1}, [0, 1, 0, 0, 0]),
        ({"min_p": 0.4}, [0, 0.4, 0.25, 0.2, 0]),
        ({"min_p": 0.4, "temperature": 0.5}, [0, 0.16, 0, 0, 0]),  # 0.39 of the largest, after squaring
        ({"min_p": 0.1, "top_p": 0.7}, [0, 0.4, 0.25, 0.2, 0]),
        ({"min_p": 0.6, "top_p": 0.7}, [0, 0.4, 0.25, 0, 0]),
    ],
)
def test_sampling_frequencies(rules: dict[str, float], expected: list[float]) -> None:
    draws = 20_000
    sampler = Sampler(Sampling(seed=0, **rules))  # type: ignore[arg-type]
    counts = np.bincount([sampler.pick(LOGITS) for _ in range(draws)], minlength=5)
    p = np.array(expected) / sum(expected)
    spread = np.sqrt(draws * p * (1 - p))
    assert (np.abs(counts - draws * p) <= 4 * spread).all()


@given(
    row=st.lists(st.integers(-3, 3), min_size=1, max_size=9),  # many are equal
    temperature=st.sampled_from([0.0, 0.3, 2.0]),
    top_k=st.integers(1, 9),
    more=st.integers(0, 9),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    seed=st.integers(0, 9),
)
def test_top_k_logits_suffice(
    row: list[int], temperature: float, top_k: int, more: int, top_p: float, seed: int
) -> None:
    logits = np.array(row, np.float32)
    one, other = (Sampler(Sampling(temperature, top_k, top_p, seed)) for _ in range(2))
    kept = np.argsort(-logits, kind="stable")[: one.sampling.limit + more]
    for _ in range(5):
        assert one.pick(logits) == other.pick(logits[kept], kept)


def test_limit() -> None:
    rules = [{"temperature": 0.0}, {"temperature": 0.0, "top_k": 5}, {"top_k": 5}, {}]
    assert [Sampling(**rule).resolved().limit for rule in rules] == [1, 1, 5, 0]  # type: ignore[arg-type]


def test_greedy_ties() -> None:
    logits = np.array([1, 3, 3, 0], np.float32)
    assert [Sampler(Sampling(temperature=0)).pick(logits) for _ in range(3)] == [1, 1, 1]
    assert {Sampler(Sampling(top_k=2, seed=seed)).pick(np.ones(5)) for seed in range(30)} == {0, 1}


def test_a_seed_gives_the_same_tokens() -> None:
    one, same, other = (Sampler(Sampling(seed=seed)) for seed in (7, 7, 8))
    first = [one.pick(LOGITS) for _ in range(40)]
    assert first == [same.pick(LOGITS) for _ in range(40)]
    assert first != [other.pick(LOGITS) for _ in range(40)]


def test_logits_not_modified() -> None:
    logits = LOGITS.copy()
    Sampler(Sampling(temperature=0.3, top_k=3, top_p=0.5)).pick(logits)
    np.testing.assert_array_equal(logits, LOGITS)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_logits(bad: float, temperature: float) -> None:
    message = f"expected finite logits; received {bad} at token 2; check the graph with t2r verify"
    with pytest.raises(UserError, match=message):
        Sampler(Sampling(temperature)).pick(np.array([0, 1, bad, 2], np.float32))
    with pytest.raises(UserError, match="received -inf at token 0"):
        Sampler(Sampling(temperature)).pick(np.array([-math.inf] * 3))


@pytest.mark.parametrize(
    "rules, message",
    [
        ({"temperature": -1}, "expected a temperature of 0 or more; received -1; choose another value"),
        ({"temperature": math.nan}, "a temperature of 0 or more; received nan"),
        ({"temperature": math.inf}, "a temperature of 0 or more; received inf"),
        ({"temperature": "hot"}, "a temperature of 0 or more; received 'hot'"),
        ({"top_k": -1}, r"top_k from 0 \(no limit\) to 2\^63 - 1; received -1"),
        ({"top_k": 1.5}, r"top_k from 0 \(no limit\) to 2\^63 - 1; received 1.5"),
        ({"top_p": 0}, r"top_p above 0 and at most 1 \(no limit\); received 0"),
        ({"top_p": 1.1}, r"top_p above 0 and at most 1 \(no limit\); received 1.1"),
        ({"min_p": -0.1}, r"min_p from 0 \(no limit\) to 1; received -0.1"),
        ({"min_p": 1.5}, r"min_p from 0 \(no limit\) to 1; received 1.5"),
        ({"min_p": math.nan}, r"min_p from 0 \(no limit\) to 1; received nan"),
        ({"repetition_penalty": 0}, r"a repetition_penalty from 0.01 to 100 \(1 is none\); received 0"),
        ({"repetition_penalty": 101}, r"a repetition_penalty from 0.01 to 100 \(1 is none\); received 101"),
        ({"no_repeat_ngram": -1}, r"no_repeat_ngram from 0 \(no limit\) to 64; received -1"),
        ({"no_repeat_ngram": 65}, r"no_repeat_ngram from 0 \(no limit\) to 64; received 65"),
        ({"no_repeat_ngram": 2.0}, r"no_repeat_ngram from 0 \(no limit\) to 64; received 2.0"),
        ({"seed": -1}, "a seed of 0 or more; received -1"),
        ({"seed": True}, "a seed of 0 or more; received True"),
    ],
)
def test_values_out_of_range(rules: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**rules)  # type: ignore[arg-type]
