"""Repetition penalties against definitions in plain loops, and which tokens count as having occurred."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import graphs
from runtime.conftest import Open
from runtime.graphs import VOCABULARY
from t2r_runtime import Batch, Decoder, Sampler, Sampling, UserError

PENALTIES = [
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2},
    {"repetition_penalty": 3.0, "no_repeat_ngram": 3, "temperature": 1.5},
]
rules = pytest.mark.parametrize("rules", PENALTIES)


def sampling(**rules: Any) -> Sampling:
    return Sampling(**{"temperature": 0, "seed": 1, "stop_tokens": (), **rules})


def by_definition(row: list[float], text: list[int], penalty: float, ngram: int) -> list[float]:
    """Penalties by plain loops over tokens and n-grams."""
    lowered = [np.float32(x) for x in row]
    for token in set(text):
        factor = np.float32(penalty)
        lowered[token] = lowered[token] / factor if lowered[token] > 0 else lowered[token] * factor
    seen = {tuple(text[i : i + ngram]) for i in range(len(text) - ngram + 1)} if ngram else set()
    left = [
        -math.inf if (*text[len(text) - ngram + 1 :], token) in seen and len(text) >= ngram else x
        for token, x in enumerate(lowered)
    ]
    return [float(x) for x in (left if max(left) > -math.inf else lowered)]


@given(
    row=st.lists(st.floats(-9, 9, width=32) | st.sampled_from([0.0, 1.0, -1.0]), min_size=4, max_size=4),
    text=st.lists(st.integers(0, 3), max_size=30),
    penalty=st.sampled_from([1.0, 0.5, 1.3, 100.0]),
    ngram=st.integers(0, 6),
    temperature=st.sampled_from([0.0, 0.5, 3.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    top_k=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_penalties_before_temperature(
    row: list[float],
    text: list[int],
    penalty: float,
    ngram: int,
    temperature: float,
    min_p: float,
    top_k: int,
    seed: int,
) -> None:
    """A choice with penalties equals one without, on the logits of the definition."""
    plain = Sampling(temperature, top_k, seed=seed, min_p=min_p)
    both = Sampling(temperature, top_k, seed=seed, min_p=min_p, repetition_penalty=penalty, no_repeat_ngram=ngram)
    expected = Sampler(plain).pick(np.array(by_definition(row, text, penalty, ngram), np.float32))
    assert Sampler(both).pick(np.array(row, np.float32), text=text) == expected


def test_a_known_text() -> None:
    row = np.array([1.0, 0.9, 0.8, -1.0], np.float32)
    for rule, text, expected in (
        ({"repetition_penalty": 1.2}, [0], 1),
        ({"repetition_penalty": 1.2}, [0, 1], 0),  # 0.83 is larger than 0.8 and 0.75
        ({"repetition_penalty": 0.5}, [2], 2),  # a reward
        ({"no_repeat_ngram": 2}, [3, 0, 2, 3], 1),
        ({"no_repeat_ngram": 2}, [3, 0, 2, 1], 0),
        ({"no_repeat_ngram": 3}, [2, 3, 0, 2, 3], 1),
        ({"no_repeat_ngram": 3}, [1, 3, 0, 2, 3], 0),
        ({"no_repeat_ngram": 1}, [0, 1, 2], 3),
        ({"no_repeat_ngram": 1}, [0, 1, 2, 3], 0),  # all tokens would be forbidden, so none is
        ({"no_repeat_ngram": 1}, [], 0),
    ):
        assert Sampler(sampling(**rule)).pick(row, text=text) == expected, (rule, text)


def test_logits_not_modified() -> None:
    row = np.array([1.0, -2.0], np.float32)
    Sampler(sampling(repetition_penalty=2, no_repeat_ngram=1)).pick(row, text=[0, 1])
    np.testing.assert_array_equal(row, [1, -2])


def by_hand(prompt: list[int], count: int, rules: Sampling) -> list[int]:
    """Generate with eager steps; the sampler gets the whole text."""
    eager, sampler, text = graphs.Eager("constant", batch=1), Sampler(rules), list(prompt)
    for token in prompt:
        logits = eager.step([token])
    for _ in range(count):
        text.append(sampler.pick(logits[0], text=text))
        logits = eager.step(text[-1:])
    return text[len(prompt) :]


@rules
def test_penalties_cover_prompt_and_text(rules: dict[str, Any], opened: Open) -> None:
    given = sampling(**rules)
    plain = opened().generate([3, 1, 4], 12, sampling(temperature=given.temperature))
    written = opened().generate([3, 1, 4], 12, given)
    assert written == by_hand([3, 1, 4], 12, given) != plain
    assert written == list(opened().stream([3, 1, 4], 12, given))


@rules
def test_split_text_equals_whole(rules: dict[str, Any], opened: Open) -> None:
    given = sampling(**{**rules, "temperature": 0})
    whole = by_hand([3, 1, 4, 4], 12, given)
    decoder = opened()
    decoder.prefill([3, 1])
    decoder.step(4)
    half = decoder.generate([4], 5, given)
    assert half + decoder.generate(half[-1:], 7, given) == whole
    decoder.reset()
    assert decoder.generate([3, 1, 4, 4], 12, given) == whole


@rules
def test_batched_texts_equal_single(rules: dict[str, Any], opened: Open) -> None:
    given, prompts = sampling(**rules), ([3, 1, 4], [5], [2, 2, 7, 1])
    expected = [opened().generate(prompt, 9 + len(prompt), given) for prompt in prompts]
    batch = Batch(opened(top_k=3))
    written: dict[int, list[int]] = {}
    for prompt in prompts:  # each begins after three tokens of the ones before
        batch.add(prompt, 9 + len(prompt), given)
        for _ in range(3):
            for handle, token in batch.step().items():
                written.setdefault(handle, []).append(token)
    while batch.sequences:
        for handle, token in batch.step().items():
            written[handle].append(token)
    assert [written[handle] for handle in range(3)] == expected


def test_penalties_require_all_logits(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with top-k outputs has all logits too."""
    expected = opened().generate([3, 1], 12, sampling(no_repeat_ngram=1))
    decoder = opened(top_k=2)
    monkeypatch.setattr(decoder, "top_k", None)
    assert decoder.generate([3, 1], 12, sampling(no_repeat_ngram=1)) == expected
    message = (
        "expected all logits for penalties; received the 2 largest; pass all, or leave out "
        "repetition_penalty and no_repeat_ngram"
    )
    with pytest.raises(UserError) as caught:
        Sampler(sampling(no_repeat_ngram=1)).pick(np.ones(2), np.array([4, 7]), [4])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text, message",
    [
        ([4, 2], "expected a text of tokens in 0 … 3; received 2 … 4; pass the tokens that the decoder has read"),
        ([-1], "expected a text of tokens in 0 … 3; received -1"),
        *(([wrong], r"expected a text of tokens, integers \(N,\); received") for wrong in (0.5, [1], None, "a")),
        ("ab", r"expected a text of tokens, integers \(N,\); received 'ab'; pass a one-dimensional array"),
        ([[1], [2, 3]], "expected a text of tokens as an array"),
    ],
)
def test_penalties_reject_unknown_tokens(text: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampler(sampling(no_repeat_ngram=1)).pick(np.ones(4), text=text)


@pytest.mark.parametrize("tokens", [[1], [1, 2, 3, 4, 5], [[1, 2, 3, 4]], [0.5] * 4, "abcd", 3])
def test_logits_of_other_tokens(tokens: Any) -> None:
    with pytest.raises(UserError, match="expected (the tokens of 4 logits|tokens, integers)"):
        Sampler(sampling()).pick(np.ones(4), tokens)


class TestHistory:
    def test_history_after_read(self, opened: Open) -> None:
        decoder = opened()
        assert decoder.history().tolist() == []
        decoder.prefill([3, 1])
        decoder.step(4)
        written = decoder.generate([4, 5], 4, sampling())
        assert decoder.history().tolist() == [3, 1, 4, 4, 5, *written[:-1]]
        assert decoder.history().dtype == np.int64
        decoder.reset()
        assert decoder.history().tolist() == []

    def test_set_state_clears_history(self, opened: Open, tmp_path: Any) -> None:
        decoder = opened()
        decoder.prefill([3, 1])
        decoder.save_state(tmp_path / "s.npz")
        decoder.set_state(decoder.state())
        assert decoder.history().tolist() == []
        decoder.prefill([4])
        decoder.load_state(tmp_path / "s.npz")
        assert decoder.history().tolist() == []
        decoder.prefill([4])
        assert decoder.history().tolist() == [4]

    def test_of_rows(self, opened: Open) -> None:
        decoder = opened()
        decoder.reset(batch=2)
        decoder.prefill([[1, 2], [3, 4]])
        decoder.reorder([1, 0, 1])
        decoder.step([5, 6, 7])
        assert [decoder.history(row).tolist() for row in range(3)] == [[3, 4, 5], [1, 2, 6], [3, 4, 7]]
        short = decoder.fork()
        assert short.history().tolist() == []
        short.reset(batch=1)
        short.prefill([8])
        decoder.take([(short, [0]), (decoder, [1])])
        decoder.step([9, 10])
        assert [decoder.history(row).tolist() for row in range(2)] == [[8, 9], [1, 2, 6, 10]]
        assert short.history().tolist() == [8]
        for wrong in (2, -1, "x"):
            with pytest.raises(UserError, match="expected a row from 0 to 1; received"):
                decoder.history(wrong)  # type: ignore[arg-type]

    def test_conversation_ends(self, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
        """However long a text becomes, only its last tokens are kept."""
        monkeypatch.setattr("t2r_runtime.decode.history.RECENT", 7)
        decoder, read = opened(), list[int]()
        random = np.random.default_rng(0)
        for length in [1, 2, 9, 30, *[1] * 40, 3]:
            ids = random.integers(0, VOCABULARY, length).tolist()
            read += ids
            decoder.prefill(ids)
            assert decoder.history().tolist() == read[-7:]
        assert decoder._history._tokens.shape[1] < 40

    def test_rejected_ids_not_read(self, opened: Open) -> None:
        decoder: Decoder = opened()
        with pytest.raises(UserError):
            decoder.prefill([99])
        assert decoder.history().tolist() == []
