"""The generation loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime import graphs
from runtime.conftest import Open
from runtime.graphs import GREEDY
from t2r_runtime import Decoder, Sampling, UserError

kinds = pytest.mark.parametrize("kind", ["constant", "growing", "both"])


def drawn(**rules: Any) -> Sampling:
    """Sampling with a fixed seed and no stop token."""
    return Sampling(seed=1, stop_tokens=(), **rules)


def greedy_by_hand(kind: str, prompt: list[int], count: int) -> list[int]:
    eager, out = graphs.Eager(kind, batch=1), []
    for token in prompt:
        logits = eager.step([token])
    for _ in range(count):
        out.append(int(logits[0].argmax()))
        logits = eager.step(out[-1:])
    return out


@kinds
def test_greedy_is_argmax(kind: str, opened: Open) -> None:
    decoder = opened(kind)
    expected = greedy_by_hand(kind, [3, 1, 4], 12)
    assert decoder.generate([3, 1, 4], 12, GREEDY) == expected
    assert decoder.position == 3 + 11  # the last token is not read


@kinds
def test_split_text_equals_whole(kind: str, opened: Open) -> None:
    whole = opened(kind).generate([3, 1], 10, GREEDY)
    decoder = opened(kind)
    half = decoder.generate([3, 1], 4, GREEDY)
    assert half + decoder.generate(half[-1:], 6, GREEDY) == whole


RULES = [GREEDY, drawn(temperature=2, top_k=2), drawn(temperature=2, top_k=3, top_p=0.8)]


@pytest.mark.parametrize("rules", RULES)
def test_top_k_outputs_give_same_text(rules: Sampling, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = opened().generate([3, 1], 20, rules)
    decoder = opened(top_k=3)
    monkeypatch.setattr(decoder, "prefill", None)  # all logits are never requested
    assert decoder.generate([3, 1], 20, rules) == expected


@pytest.mark.parametrize("rules", [drawn(temperature=2), drawn(temperature=2, top_k=4)])
def test_top_k_outputs_insufficient(rules: Sampling, opened: Open) -> None:
    expected = opened().generate([3, 1], 20, rules)
    assert opened(top_k=3).generate([3, 1], 20, rules) == expected


def test_a_seed_gives_the_same_text(opened: Open) -> None:
    def write(seed: int) -> list[int]:
        return opened("growing").generate([3], 30, Sampling(temperature=3, seed=seed, stop_tokens=()))

    assert write(5) == write(5)
    assert write(5) != write(6)


def test_stop_token_is_last(opened: Open) -> None:
    whole = opened().generate([3], 20, drawn(temperature=2))
    stop = whole[7]
    first = whole.index(stop) + 1
    assert opened().generate([3], 20, Sampling(temperature=2, seed=1, stop_tokens=[stop])) == whole[:first]
    assert opened(eos_tokens=(stop,)).generate([3], 20, Sampling(temperature=2, seed=1)) == whole[:first]


def test_callback(opened: Open) -> None:
    seen: list[int] = []
    whole = opened().generate([3], 9, GREEDY, callback=seen.append)
    assert seen == whole and len(whole) == 9
    seen.clear()

    def until_four(token: int) -> bool:
        seen.append(token)
        return len(seen) < 4

    assert opened().generate([3], 9, GREEDY, callback=until_four) == seen == whole[:4]
    assert opened().generate([3], 9, GREEDY, callback=lambda token: 0) == whole


def test_stream_equals_generate(opened: Open) -> None:
    whole = opened().generate([3], 9, GREEDY)
    decoder = opened()
    tokens = decoder.stream([3], 9, GREEDY)
    assert [next(tokens) for _ in range(4)] == whole[:4]
    assert decoder.position == 1 + 3
    decoder.reset()
    assert list(decoder.stream(np.array([[3]]), 9, GREEDY)) == whole


def test_all_positions_can_be_filled(opened: Open) -> None:
    # 9 positions: 4 prompt tokens and 5 more are read, the sixth is only returned
    assert len(opened("table").generate([1, 2, 3, 4], 6, Sampling(stop_tokens=()))) == 6
    decoder = opened("table")
    message = (
        "expected max_tokens of at most 6: this model's positions end at 9; received 7 after 4 tokens; request fewer"
    )
    with pytest.raises(UserError, match=message):
        decoder.generate([1, 2, 3, 4], 7)
    with pytest.raises(UserError, match="max_tokens of at most 0.*received 1 after 12 tokens"):
        decoder.generate([1] * 12, 1)
    assert decoder.position == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"ids": []}, "at least one token; received none; start from the BOS token, 1"),
        ({"ids": [[1], [2]]}, r"ids of the shape \(1, T\) or \(T,\); received \(2, 1\); pass one row of tokens"),
        ({"ids": 3}, r"ids of the shape \(1, T\) or \(T,\); received \(\)"),
        ({"ids": [11]}, "ids in 0 … 10; received 11"),
        ({"max_tokens": 0}, r"max_tokens of at least 1; received 0; choose another value"),
        ({"max_tokens": 2.5}, r"max_tokens of at least 1; received 2.5"),
        (
            {"sampling": Sampling(stop_tokens=[11])},
            "stop tokens in 0 … 10; received 11; use the tokenizer of this model",
        ),
        (
            {"sampling": Sampling(stop_tokens=["end"])},  # type: ignore[list-item]
            "stop tokens in 0 … 10; received 'end'",
        ),
    ],
)
def test_invalid_arguments_raise_at_once(arguments: dict[str, object], message: str, opened: Open) -> None:
    decoder: Decoder = opened()
    with pytest.raises(UserError, match=message):
        decoder.stream(**({"ids": [1], "max_tokens": 3} | arguments))  # type: ignore[arg-type]
    assert decoder.position == 0


def test_one_text_at_a_time(opened: Open) -> None:
    decoder = opened()
    decoder.reset(batch=2)
    with pytest.raises(UserError, match=r"a batch of 1 to generate; received 2; reset\(batch=1\), or use step"):
        decoder.generate([1], 3)
