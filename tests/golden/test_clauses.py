"""Every clause of the contract has a number and names the golden cases or the test that check it, or why none do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from contract_pages import PAGES

ROOT = Path(__file__).parents[2]
TINY = ROOT / "models" / "tiny"
CLAUSE = re.compile(r"^- \*\*([A-Z])(\d+)\*\* (.*?) \[(golden|test|no case): ([^\]]+)\]$", re.DOTALL)
CORE_LINES = 150


class Clause(NamedTuple):
    page: str
    letter: str
    number: int
    text: str
    checked_by: str
    names: str


def paragraphs(page: str) -> Iterator[str]:
    """Paragraphs that begin like a clause, up to the next one, blank line or heading."""
    for part in re.split(r"\n\s*\n|\n(?=- |#|\|)", page):
        if part.startswith("- **"):
            yield part.strip()


def clauses() -> Iterator[Clause]:
    for page, text in PAGES.items():
        for part in paragraphs(text):
            found = CLAUSE.match(part)
            assert found, f"{page}: no clause that says what checks it: {part[:80]}"
            letter, number, said, checked_by, names = found.groups()
            yield Clause(page, letter, int(number), said, checked_by, names)


ALL = list(clauses())
INDEX = [case["case"] for case in json.loads((TINY / "index.json").read_text())["cases"]]
BAD = {file["file"] for file in json.loads((TINY / "bad.json").read_text())["files"]}


def golden(kind: str) -> list[str]:
    return [name for clause in ALL if clause.checked_by == kind for name in clause.names.split(", ")]


def test_clauses_are_numbered() -> None:
    """Numbers start at 1, each letter is on one page, and no clause lacks a number."""
    for letter, group in groupby(ALL, lambda clause: clause.letter):
        found = list(group)
        assert [clause.number for clause in found] == [*range(1, len(found) + 1)], letter
    assert len({(c.page, c.letter) for c in ALL}) == len({c.letter for c in ALL})
    assert {page for page, *_ in ALL} == {*PAGES}


def test_every_golden_case_that_is_named_exists() -> None:
    for name in golden("golden"):
        assert name in INDEX or [file for file in BAD if fnmatch(file, name)], name


def test_every_golden_case_is_named() -> None:
    assert {*INDEX} - {*golden("golden")} == set()
    names = [name for name in golden("golden") if name not in INDEX]
    assert {file for file in BAD if not any(fnmatch(file, name) for name in names)} == {"translator-starts.onnx"}


@pytest.mark.parametrize("name", sorted({*golden("test")}))
def test_every_test_that_is_named_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert not function or f"def {function}(" in (ROOT / file).read_text("utf-8")
    assert (ROOT / file).is_file()


def test_what_no_case_checks_says_why() -> None:
    assert [c for c in ALL if c.checked_by == "no case" and len(c.names) < 20] == []
    assert sum(clause.checked_by == "golden" for clause in ALL) >= 0.6 * len(ALL)


def test_the_core_is_short() -> None:
    assert len(PAGES["CONTRACT"].splitlines()) <= CORE_LINES


def test_references_to_clauses_are_of_clauses() -> None:
    there = {f"{clause.letter}{clause.number}" for clause in ALL}
    referred = {
        name for text in PAGES.values() for name in re.findall(r"(?<![\w`*])\(?([EFGIKMPRSTVX]\d+)(?=[) ,.;:])", text)
    }
    assert referred - there == set()
