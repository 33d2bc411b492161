"""Penalties of OpenAI's API and biases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from runtime.serve.server import Server
from t2r_runtime import Decoder
from t2r_runtime.serve.logits import ChangedLogits, LogitChanges

PROMPT = [3, 1, 4, 1, 5]


def expected(graph: Path, presence: float, frequency: float, bias: dict[int, float]) -> list[int]:
    """The greedy text by OpenAI's formula: logits[t] - count[t] · frequency - (count[t] > 0) · presence + bias[t]."""
    decoder, counts, tokens = Decoder(graph, threads=1), Counter[int](), list[int]()
    logits = decoder.prefill(PROMPT)[0]
    for _ in range(12):
        scores = [
            logit - counts[token] * frequency - (counts[token] > 0) * presence + bias.get(token, 0)
            for token, logit in enumerate(logits)
        ]
        tokens.append(int(np.argmax(scores)))
        counts[tokens[-1]] += 1
        logits = decoder.step(tokens[-1])[0]
    return tokens


@pytest.mark.parametrize(
    "presence, frequency, bias",
    [(0, 0, {}), (2, 0, {}), (0, 1.25, {}), (-1, 2.0, {}), (0, 0, {7: 100, 0: -100}), (1.5, 0.5, {2: 1.5, 9: -0.5})],
)
def test_changes(presence: float, frequency: float, bias: dict[int, float], server: Server, graph: Path) -> None:
    fields = {"presence_penalty": presence, "frequency_penalty": frequency, "logit_bias": bias}
    found = server.tokens(PROMPT, max_tokens=12, temperature=0, ignore_eos=True, n=2, **fields)
    assert found == [expected(graph, presence, frequency, bias)] * 2


def test_tokens_are_counted_once() -> None:
    changed = ChangedLogits(LogitChanges(1.0, 0.5, {0: 3.0}))
    logits, tokens = np.array([1, 2, 4], np.float32), list[int]()
    for token, sums in ((2, [4, 2, 4]), (2, [4, 2, 2.5]), (0, [4, 2, 2]), (1, [2.5, 2, 2]), (1, [2.5, 0.5, 2])):
        np.testing.assert_array_equal(changed(logits, tokens), sums)
        tokens.append(token)
    np.testing.assert_array_equal(logits, [1, 2, 4])
