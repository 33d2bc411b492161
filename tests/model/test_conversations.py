from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from t2r_export.model.conversations import BATCH, TRIED, Read, Turns, sample_conversations
from t2r_runtime.errors import UserError

WORDS = 40  # size of the vocabulary
TURNS = Turns((1, 2), ((3, 4), (5,)), frozenset({6}), frozenset({1, 3, 5, 6}))
USER, ANSWER = [10, 11], [12, 13, 14]


def scripted(*scripts: list[int], doubt: float = 0.0) -> Callable[[int], Read]:
    """Rows that write these tokens, in turn, then a row of others; the last script with less certainty by `doubt`."""

    def start(batch: int) -> Read:
        left = [list(scripts[row % len(scripts)]) for row in range(batch)]
        likely = [
            80.0 if not doubt or row % len(scripts) + 1 < len(scripts) else float(-np.log(doubt))
            for row in range(batch)
        ]

        def read(ids: Tensor) -> Tensor:
            logits = torch.zeros(batch, WORDS)
            for row, script in enumerate(left):
                logits[row, script.pop(0) if script else 8 + (5 * int(ids[row]) + 3) % 32] = likely[row]
            return logits

        return read

    return start


def test_the_template_stands_between_messages() -> None:
    # the model's choices where the template is due are not read
    script = [9, *USER, 3, 9, *ANSWER, 5, 20, 6, 9, 21, 22]
    (row, *_), sampled = sample_conversations(scripted(script), TURNS, 15, 15)
    assert row.tolist() == [1, 2, *USER, 3, 4, *ANSWER, 5, 20, 3, 4, 21, 22]
    assert row.dtype == np.int32 and sampled == BATCH


def test_broken_conversations_are_dropped() -> None:
    def talk(user: list[int], answer: list[int]) -> list[int]:
        return [9, *user, 3, 9, *answer, 5]

    loop = list(range(20, 28)) * 4
    scripts = {
        "whole": talk(USER, ANSWER),
        "nearly a loop": talk(USER, loop[:-1]),
        "no answer": [9, *range(10, 40), *range(10, 40)],
        "unfinished answer": [9, *USER, 3, 9, *range(8, 40), *range(8, 40)],
        "empty question": talk([], ANSWER),
        "empty answer": talk(USER, []),
        "loop": talk(USER, loop),
        "special token": talk([10, 1, 11], ANSWER),
    }
    rows, sampled = sample_conversations(scripted(*scripts.values()), TURNS, 50 * (BATCH // 4), 50)
    assert sampled == BATCH and len(rows) == BATCH // 4
    assert {row[2] for row in rows.tolist()} == {USER[0]}
    assert sorted({tuple(row[6:9]) for row in rows.tolist()}) == [(12, 13, 14), (20, 21, 22)]


def test_unlikely_conversations_are_dropped() -> None:
    whole = [9, *USER, 3, 9, *ANSWER, 5]
    rare = [9, 15, 16, 3, 9, *ANSWER, 5]
    rows, _ = sample_conversations(scripted(*[whole] * (BATCH - 1), rare, doubt=0.005), TURNS, 20 * BATCH, 20)
    assert 15 not in rows[:, 2]


def test_a_seed_repeats() -> None:
    def start(batch: int) -> Read:
        return lambda ids: torch.cos(torch.outer(ids.float(), torch.arange(WORDS) + 1.0)) * 2

    first, _ = sample_conversations(start, TURNS, 300, 60, seed=3)
    assert first.shape == (5, 60) and np.array_equal(first, sample_conversations(start, TURNS, 300, 60, seed=3)[0])
    assert not np.array_equal(first, sample_conversations(start, TURNS, 300, 60, seed=4)[0])
    cold, _ = sample_conversations(start, TURNS, 300, 60, temperature=0.3, seed=3)
    assert not np.array_equal(first, cold)


def test_refusals() -> None:
    whole = [9, *USER, 3, 9, *ANSWER, 5]
    with pytest.raises(UserError, match="a length above 2, the tokens before a message; received 2"):
        sample_conversations(scripted(whole), TURNS, 9, 2)
    with pytest.raises(UserError, match=f"conversations that can be kept; received 0 of {TRIED} that have an answer"):
        sample_conversations(scripted([9, *USER, 3, 9, 5]), TURNS, 9, 30)
    with pytest.raises(UserError, match="a model with finite logits; received NaN or infinity at token 1 of a text"):
        sample_conversations(lambda batch: lambda ids: torch.full((batch, WORDS), torch.nan), TURNS, 9, 9)
