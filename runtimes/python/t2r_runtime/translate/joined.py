"""Joins the translations of the sentences of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from t2r_runtime.session.segment import repeats
from t2r_runtime.text.tokenizer import Tokenizer
from t2r_runtime.translate.beam import Translation


def joined(sentences: Sequence[Translation], target: Tokenizer, most: int, ends: Sequence[int]) -> dict[str, Any]:
    """The translation of a text: its sentences joined by spaces; its score is their mean, weighted by tokens."""
    tokens = [one.tokens for one in sentences]
    bodies = [each[:-1] if each[-1:] and each[-1] in ends else each for each in tokens]
    return {
        "text": " ".join(target.decode(each) for each in tokens),
        "tokens": [token for each in tokens for token in each],
        "score": sum(one.score * len(one.tokens) for one in sentences) / max(1, sum(map(len, tokens))),
        "cut": any(len(each) >= most for each in tokens),
        "repeats": any(map(repeats, bodies)),
    }
