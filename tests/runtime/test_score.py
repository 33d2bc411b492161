"""The log-probabilities of a text are those of its logits."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.conftest import Open
from t2r_runtime import UserError
from t2r_runtime.decode.score import score


@pytest.mark.parametrize("kind", ["constant", "both", "silent"])
def test_score_per_token(kind: str, opened: Open) -> None:
    decoder, other, text = opened(kind), opened(kind), [3, 1, 4, 1, 5, 9, 2]
    decoder.prefill([7, 7])  # another text
    seen: list[int] = []
    found = score(decoder, text, seen.append)
    assert seen == [1, 2, 3, 4, 5, 6] and found.dtype == np.float64
    for place in range(1, len(text)):
        other.reset()
        logits = other.prefill(text[:place])[0].astype(np.float64)
        expected = logits[text[place]] - np.log(np.exp(logits).sum())
        assert found[place - 1] == pytest.approx(expected, rel=1e-6)


def test_score_rejects(opened: Open) -> None:
    with pytest.raises(UserError, match="a text of at least 2 tokens to score; received 1"):
        score(opened(), [3])
    with pytest.raises(UserError, match="ids in 0"):
        score(opened(), [3, 99])
    with pytest.raises(UserError, match="positions end"):
        score(opened("table"), [1] * 99)
    with pytest.raises(UserError, match="batch"):
        score(opened(batch=2), [1, 2])
