"""Pieces of a text read twice, by benchmarks/repeated_text.py."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

import repeated_text
from t2r_runtime.errors import UserError


def test_both_sequences_end_with_the_piece() -> None:
    again, other = repeated_text.sequences(np.arange(100), 3, 5, 4)
    assert again.shape == other.shape == (4, 11)
    for n, (first, second) in enumerate(zip(again, other, strict=True)):
        start = int(first[0])
        assert first.tolist() == [*range(start, start + 8), *range(start, start + 3)]
        assert second[3:].equal(first[3:])
        assert second[:3].equal(again[(n + 1) % 4, :3])
    assert len(set(again[:, 0].tolist())) == 4


def test_text_too_short() -> None:
    with pytest.raises(UserError, match="expected a text of at least 15 tokens; received 14; name a longer one"):
        repeated_text.sequences(np.arange(14), 3, 5, 4)


def test_softmax_attention_remembers_a_piece(data: Path) -> None:
    options = argparse.Namespace(piece=32, between="0,32", pieces=20)
    options.models = [data / "checkpoints" / "stories260K"]
    options.text = data / "text" / "tinystories.txt"
    made = repeated_text.compared(options)
    assert made.head == ["model", "after 0", "after 32"]
    [[name, *cells]] = made.rows
    assert name == "stories260K"
    for cell in cells:
        again, other = (float(part) for part in cell.rstrip(")").split(" ("))
        assert again < other - 0.1
