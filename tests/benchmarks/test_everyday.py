"""The table of sentence kinds: the scoring rules, and that no training file contains its sentences."""

from __future__ import annotations

import json
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import everyday
import small
import texts
from everyday import Line
from t2r_export.data.pair_sources import words
from t2r_runtime.errors import UserError

SET = Path(__file__).parents[2] / "models" / "translator-de-en" / "everyday.tsv"


def test_the_set_has_thirty_sentences_of_ten_kinds() -> None:
    lines = everyday.read_lines(SET)
    assert set(Counter(line.kind for line in lines).values()) == {30} and len(lines) == 300
    assert len({line.source for line in lines}) == len({line.given for line in lines}) == 300
    for line in lines:  # each reference must score as right
        given = Line(line.source, line.given, line.kind, line.given)
        assert everyday.has_numbers(given) in (None, True) and everyday.has_names(given) in (None, True), line


def test_no_data_has_a_sentence_of_it(data: Path) -> None:
    unseen = {words(side) for line in everyday.read_lines(SET) for side in (line.source, line.given)}
    with zipfile.ZipFile(data / "parallel" / "deu-eng.zip") as archive:
        rows = archive.read("deu.txt").decode().splitlines()
    rows += (data / "parallel" / "more-deu-eng.tsv").read_text(encoding="utf-8").splitlines()
    sides = {words(side) for row in rows for side in row.split("\t")[:2]}
    assert len(sides) > 300_000 and not sides & unseen


@pytest.mark.parametrize(
    "source, given, translation, numbers, names",
    [
        ("Emil hat 3 Hunde.", "Emil has 3 dogs.", "Emil has three dogs.", True, True),
        ("Emil hat 3 Hunde.", "Emil has 3 dogs.", "Emily has 4 dogs.", False, False),
        ("im August", "in August", "in September", None, None),
        ("Wie geht es?", "How are you?", "How?", None, None),
    ],
)
def test_what_is_right(source: str, given: str, translation: str, numbers: bool | None, names: bool | None) -> None:
    line = Line(source, given, "kind", translation)
    assert (everyday.has_numbers(line), everyday.has_names(line)) == (numbers, names)


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts.write_translator(tmp_path / "one.pt", small.LINEAR_CROSS, "sinusoidal")
    (tmp_path / "set.tsv").write_text("ab. ba.\tba. ab.\tfirst\nabc\tcba\tfirst\nh 1\th 1\tsecond\n")
    options = ["everyday.py", str(tmp_path / "one.pt"), str(tmp_path / "set.tsv"), "--beam", "1"]
    monkeypatch.setattr(
        sys, "argv", [*options, "--save", str(tmp_path / "kept.json"), "--out", str(tmp_path / "out.tsv")]
    )
    everyday.main()
    rows = json.loads((tmp_path / "kept.json").read_text())["rows"]
    assert [(row[0], row[1], row[4], row[5]) for row in rows] == [
        ("first", "2", "-", "-"),
        ("second", "1", "0 of 1", "-"),
        ("all", "3", "0 of 1", "-"),
    ]
    assert all(0 <= int(row[6]) <= int(row[1]) for row in rows)
    assert all(0 <= float(score) <= 100 for row in rows for score in row[2:4])
    assert "| all | 3 |" in capsys.readouterr().out
    assert [len(line.split("\t")) for line in (tmp_path / "out.tsv").read_text().splitlines()] == [4, 4, 4]


def test_numbers_and_repetition_are_counted() -> None:
    lines = [Line("3 Hunde", "3 dogs", "k", "dogs", repeats=True), Line("4", "4", "k", "4")]
    assert everyday.table(lines).rows[-1][4:] == ["1 of 2", "-", "1"]


def test_scores_are_of_what_was_translated() -> None:
    lines = [Line("ein Hund", "this is a small dog", "k", "this is a small dog")]
    assert everyday.table(lines).rows[-1][2:4] == ["100.0", "100.0"]


def test_a_line_without_a_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match="a source, a translation and a kind in each line"):
        everyday.read_lines(tmp_path / "set.tsv")
