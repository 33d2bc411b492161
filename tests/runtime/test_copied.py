"""Numbers and names that a translation should copy: none differs in a good one, and each that differs is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from t2r_export.checkpoints import checkpoint
from t2r_runtime import Tokenizer, Translator
from t2r_runtime.text.copied import missing_names
from t2r_runtime.text.numbers import differing_numbers
from t2r_runtime.translate.copies import copying_of

FOLDER = Path(__file__).parents[2] / "models" / "translator-de-en"
PAIRS = [line.split("\t") for line in (FOLDER / "everyday.tsv").read_text(encoding="utf-8").splitlines()]
KNOWN = ("Auto", "Die", "Onkel", "Wochen", "frau")


@pytest.mark.parametrize(
    "source, translation, missing, added",
    [
        ("Frau Müller wohnt seit 1998 hier.", "Water has been living in 199th in 1990.", "1998", "199 1990"),
        ("1.500 Leute", "1,500 people", "", ""),
        ("1.500 Leute", "1500 people", "", ""),
        ("12.345.678,9 Liter", "12,345,678.9 liters", "", ""),
        ("1500 Leute und 1500 Hunde", "1500 people", "1500", ""),
        ("4,20 Euro", "€4.20", "", ""),
        ("4,20 Euro", "€4.02", "4,20", "4.02"),
        ("3,00 Euro", "3,000 euros", "3,00", "3,000"),
        ("380.000 Euro", "380,000,0000 euros", "380.000", "380,000,0000"),
        ("500 Menschen", "5000 people", "500", "5000"),
        ("820.000", "820,0000", "820.000", "820,0000"),
        ("10115 Berlin", "1015 Berlin", "10115", "1015"),
        ("Er hat 3 Kinder und 13 Enkel.", "He has three children and thirteen grandchildren.", "13", ""),
        ("Er hat drei Kinder.", "He has 3 children.", "", ""),
        ("Er hat 3 oder 3 Kinder.", "He has three children.", "3", ""),
        ("am 3. Mai", "on May 3", "", ""),
        ("am 24.12.2024", "on December 24, 2024", "", ""),
        ("am 05.03.24 kam er", "on 3/5/24 he came", "", ""),
        ("Am 24.12. kam er", "On December 24 he came", "", ""),
        ("Am 10.12. kam er", "On December 10 he came", "", ""),
        ("am 24.12.2024", "on December 24, 2025", "2024", "2025"),
        ("am 24.12.2025", "on 24,12025", "24 12 2025", "24,12025"),
        ("um 17 Uhr", "at 5 p.m.", "", ""),
        ("um 17 Uhr", "at 5", "17", "5"),
        ("um 5 p.m.", "um 17 Uhr", "", ""),
        ("um 23:40 Uhr", "at 11:40pm", "", ""),
        ("um 14:35 Uhr", "at 2:35", "14:35", "2:35"),
        ("um 23:40 Uhr", "at 11:45 p.m.", "23:40", "11:45"),
        ("um 8.15 Uhr", "at 8:15", "", ""),
        ("um 17:00 Uhr", "at 5:00 PM", "", ""),
        ("15 am Tisch", "3 at the table", "15", "3"),
        ("um 0:30 Uhr", "at 12:30 a.m.", "", ""),
        ("um 09 Uhr", "at 9:00", "", ""),
        ("um 00 Uhr", "at 12 a.m.", "", ""),
        ("3:1 und 1/2", "3 to 1, and 1/2", "", ""),
        ("Version 7.2.105", "version 7.2.105", "", ""),
        ("007", "7", "007", "7"),
        ("von 9 bis 5", "all day", "9 5", ""),
        ("keine", "any 3", "", "3"),
        ("9" * 5000, "9" * 5000, "", ""),  # Python converts at most 4,300 digits
        (f"um {'9' * 5000}:{'0' * 5000}", "1", f"{'9' * 5000} {'0' * 5000}", "1"),
        ("", "", "", ""),
    ],
)
def test_numbers(source: str, translation: str, missing: str, added: str) -> None:
    assert differing_numbers(source, translation) == (missing.split(), added.split())


def test_many_numbers_take_linear_time() -> None:
    text = " ".join(map(str, range(20_000)))
    assert differing_numbers(text, text) == ([], [])


@pytest.mark.parametrize(
    "source, translation, missing",
    [
        ("Frau Brinkmann kommt.", "Mrs. Brinkmann is coming.", []),
        ("Frau Brinkmann kommt.", "Mrs. Brown is coming.", ["Brinkmann"]),
        ("das Auto von Onkel Rüdiger", "uncle Rudiger's car", []),
        ("Onkel Rüdigers Auto", "uncle Rüdiger's car", []),
        ("Onkel Rüdigers Auto", "uncle Roger's car", ["Rüdigers"]),
        ("Die Brücke", "The bridge", []),  # after a determiner, and the start of a sentence
        ("Frau Onkel", "Mrs. Brown", []),  # one-token words are known
        ("Frau brinkmann, Onkel", "Mrs.", []),
        ("vier Wochen Gips", "four weeks", []),  # after a unit
        ("Es heißt Bruno.", "It is called.", ["Bruno"]),
        ("Onkel Emil Rüdiger", "", ["Emil", "Rüdiger"]),
    ],
)
def test_names(source: str, translation: str, missing: list[str]) -> None:
    assert missing_names(source, translation, KNOWN.__contains__) == missing


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(FOLDER.parent / "tiny" / "translator-copies.onnx", threads=1)


@pytest.mark.parametrize(
    "source, text, allowed",
    [
        ("2 1", "2 1", True),
        ("2 1", "2! 1", True),
        ("2 1", "3", False),
        ("2 1", "2 2", False),
        ("2 1", "21", False),
        ("2 1", "2.1", False),  # after a mark, not another number
        ("2 1", "2:1", False),
        ("2.1.03", "2/1/03", True),  # but another part of a date
        ("2.1.03 7", "2.7", False),
        ("2.1.03 7", "7.2", False),
        ("1.2. n 1", "1 1", True),
    ],
)
def test_what_may_be_written(source: str, text: str, allowed: bool, translator: Translator) -> None:
    copying = copying_of(translator.signature)
    assert copying is not None
    copies = copying.of(copying._source.encode_documents([source])[0])
    assert copies is not None
    assert bool(copies.read(copying.tokens[letter][0] for letter in text)) == allowed


def test_of_good_translations_hardly_any_is_named() -> None:
    tokenizer = Tokenizer(str(checkpoint.load(FOLDER / "model.pt").tokenizer))
    found = [missing_names(de, en, lambda w: len(tokenizer.encode_documents([f" {w}"])[0]) == 1) for de, en, _ in PAIRS]
    assert [differing_numbers(de, en) for de, en, _ in PAIRS] == [([], [])] * 300
    assert sorted(word for words in found for word in words) == ["Briefe", "Franken", "Tulpen"]
