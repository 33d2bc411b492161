"""Splitting of a text into sentences, and detection of repetition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from t2r_runtime.session.segment import repeats, split_sentences

TINY = Path(__file__).parents[2] / "models" / "tiny"
CUT = [
    ["Wo ist der Bahnhof?", "Er ist dort."],
    ["Guten Tag!", "„Wie geht es?“", "Gut."],
    ['He said "No."', "Then he left."],
    ["Wait...", "What?!", "(Yes.)", "5 men came."],
    ["¿Dónde está?", "¡Aquí!"],
    ["今日は。", "「元気ですか。」", "はい！"],
    ["no end"],
]
WHOLE = [
    "Am 3. Mai kam Dr. Müller, z. B. mit J. Smith usw. Er ging.",
    "The U.S. Army has 3.5 million. dollars, i.e. more.",
    "Mr. Brown met Mrs. Green etc. on Jan. 5.",
    "One Dr. Who.",
    "see www.example.org/a?b=c!d",
    "",
]


@pytest.mark.parametrize("sentences", CUT, ids=lambda s: s[0])
def test_split_sentences(sentences: list[str]) -> None:
    between = "" if "。" in sentences[0] else " "
    assert split_sentences(f"  {between.join(sentences)}\t") == sentences


@pytest.mark.parametrize("line", WHOLE)
def test_abbreviations_do_not_end_sentences(line: str) -> None:
    assert " ".join(split_sentences(line)) == line
    assert len(split_sentences(line)) <= 1


def test_split_sentences_keeps_words() -> None:
    line = "One.  Two!   three? Four… Five." * 20
    assert " ".join(split_sentences(line)).split() == line.split()


def test_golden_sentences() -> None:
    for text, sentences in json.loads((TINY / "sentences.json").read_text("utf-8")):
        assert split_sentences(text) == sentences


def test_many_words_take_linear_time() -> None:
    assert len(split_sentences("a. " * 100_000)) == 1


def test_repetition() -> None:
    assert repeats([1, 2, 3] + [7, 8] * 6)
    assert repeats([5] * 8)
    assert repeats([4, 1, 2, 3, 1, 2, 3, 1, 2, 9, 9])  # the strength of the strength of the strength
    assert repeats([9, *range(16), *range(16), 4])
    assert not repeats([5] * 7)
    assert not repeats([1, 2, 3] * 2 + [1])
    assert not repeats([*range(17), *range(17)])
    assert not repeats([*range(5), 9, *range(5)])
    assert not repeats([])
