"""Numbers and names that a translation should copy: none is missing in a good one, and each lost one is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from t2r_export.checkpoints import checkpoint
from t2r_runtime import Tokenizer
from t2r_runtime.text.copied import missing_names, missing_numbers

FOLDER = Path(__file__).parents[2] / "models" / "translator-de-en"
PAIRS = [line.split("\t") for line in (FOLDER / "everyday.tsv").read_text(encoding="utf-8").splitlines()]
PIECES = {"frau": 3, "onkel": 3, "emil": 3, "die": 1}  # other words: one piece per three letters


def pieces(word: str) -> int:
    return PIECES.get(word, -(-len(word) // 3))


@pytest.mark.parametrize(
    "source, translation, missing",
    [
        ("Frau Müller wohnt seit 1998 in Köln.", "Water has been living in 199th in 1990.", ["1998"]),
        ("1.500 Leute", "1,500 people", []),
        ("1.500 Leute", "1500 people", []),
        ("1500 Leute und 1500 Hunde", "150 people", ["1500"]),
        ("4,20 Euro", "€4.20", []),
        ("4,20 Euro", "€4.02", ["4,20"]),
        ("Er hat 3 Kinder und 13 Enkel.", "He has three children and thirteen grandchildren.", ["13"]),
        ("am 3. Mai", "on May 3", []),
        ("am 24.12.2024", "on December 24, 2024", []),
        ("am 24.12.2024", "on December 24, 2025", ["24.12.2024"]),
        ("um 17 Uhr", "at 5 p.m.", []),
        ("um 23:40 Uhr", "at 11:40 p.m.", []),
        ("um 23:40 Uhr", "at 11:45 p.m.", ["23:40"]),
        ("um 17:00 Uhr", "at 5 o'clock", []),
        ("um 0:30 Uhr", "at 12:30 a.m.", []),
        ("007", "7", []),
        ("von 9 bis 5", "all day", ["9", "5"]),
        ("keine", "any 3", []),
        ("9" * 5000, "9" * 5000, []),  # Python converts at most 4,300 digits
        (f"um {'9' * 5000}:{'0' * 5000}", "1", [f"{'9' * 5000}:{'0' * 5000}"]),
        ("", "", []),
    ],
)
def test_numbers(source: str, translation: str, missing: list[str]) -> None:
    assert missing_numbers(source, translation) == missing


@pytest.mark.parametrize(
    "source, translation, missing",
    [
        ("Frau Brinkmann kommt.", "Mrs. Brinkmann is coming.", []),
        ("Frau Brinkmann kommt.", "Mrs. Brown is coming.", ["Brinkmann"]),
        ("das Auto von Onkel Rüdiger", "uncle Rudiger's car", []),
        ("Onkel Rüdigers Auto", "uncle Rüdiger's car", []),
        ("Onkel Rüdigers Auto", "uncle Roger's car", ["Rüdigers"]),
        ("Die Brücke", "The bridge", []),  # after the start of a sentence
        ("Frau Ina", "Mrs. Brown", []),  # one-piece words are known
        ("Frau brinkmann, Onkel", "Mrs.", []),
        ("Onkel Emil Rüdiger", "", ["Emil", "Rüdiger"]),
    ],
)
def test_names(source: str, translation: str, missing: list[str]) -> None:
    assert missing_names(source, translation, pieces) == missing


def test_of_good_translations_hardly_any_is_named() -> None:
    tokenizer = Tokenizer(str(checkpoint.load(FOLDER / "model.pt").tokenizer))
    found = [
        missing_names(de, en, lambda word: len(tokenizer.encode_documents([f" {word}"])[0])) for de, en, _ in PAIRS
    ]
    assert [missing_numbers(de, en) for de, en, _ in PAIRS] == [[]] * 300
    assert sorted(word for words in found for word in words) == ["Franken", "Gips"]
