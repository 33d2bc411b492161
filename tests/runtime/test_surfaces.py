"""Tokens of texts that the vocabulary has and the model does not find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

VOCAB = [["?", -9.0], ["a", -1.0], ["b", -2.0]]


def tokenizer(**changes: Any) -> Tokenizer:
    model = {"type": "Unigram", "unk_id": 0, "vocab": VOCAB, "surfaces": {"b": 1, "xy": 2}}
    return Tokenizer(json.dumps({"model": {**model, **changes}}))


def test_texts_of_pieces_and_of_unknown_tokens() -> None:
    assert tokenizer().encode("abxya") == [1, 1, 2, 1]
    assert tokenizer(surfaces=None).encode("abxya") == [1, 2, 0, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"unk_id": {}},
        {"unk_id": [0]},
        {"surfaces": {"a": 3}},
        {"surfaces": {"a": True}},
        {"surfaces": ["a"]},
        {"type": "BPE", "vocab": {"b": []}, "merges": []},
        {"type": "BPE", "vocab": {"b": 0, "a": 1}, "merges": [], "unk_id": [], "surfaces": {"b": 1}},
    ],
    ids=str,
)
def test_damaged_models_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        tokenizer(**changes)
