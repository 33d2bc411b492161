"""Test lines by origin: near lines differ by one word, far lines by more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everyday
import kinds

SENTENCES = st.lists(st.sampled_from("abc"), max_size=5).map(tuple)


def distance(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """Word edit distance: replacements, insertions and deletions."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@given(st.lists(SENTENCES, max_size=3), SENTENCES)
def test_near_is_at_most_one_word(trained: list[tuple[str, ...]], sentence: tuple[str, ...]) -> None:
    near = kinds.Near()
    for each in trained:
        near.add(each)
    assert (sentence in near) == any(distance(each, sentence) <= 1 for each in trained)


def test_lines_have_kinds(tmp_path: Path) -> None:
    files = {
        "test": "Das ist gut.\tGood.\nEr kam gestern an.\tHe arrived.\nJa, bitte.\tYes.\nTippe hier.\tTap here.\n",
        "train": "Das war gut!\tThat was good.\n",
        "more": "Ja, bitte.\tYes.\tbcontrast\nTippe hier.\tTap here.\tinaturalist\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    kinds.main([str(tmp_path / name) for name in (*files, "out")])
    lines = everyday.read_lines(tmp_path / "out")
    assert [line.kind for line in lines] == ["Tatoeba, near", "Tatoeba, far", "dialogues", "apps"]
    (tmp_path / "more").write_text("Ja, bitte.\tYes.\tnobody\n", encoding="utf-8")
    with pytest.raises(KeyError, match="nobody"):
        kinds.main([str(tmp_path / name) for name in (*files, "out")])
