"""Tables of students in the docs are those that the command made and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builds import keep
from comparison.page import PLACE
from comparison.tables import Table

ROOT = Path(__file__).parents[2]
RESULTS = {path.name: path for path in sorted((ROOT / "benchmarks" / "results").glob("*.json"))}
NOT_KEPT = {"performance.md"}  # made by benchmarks/run.py on a machine of its own; its results were not kept
PLACES = [
    (page.name, name, place[0])
    for page in sorted((ROOT / "docs").glob("*.md"))
    for place in PLACE.finditer(page.read_text(encoding="utf-8"))
    for name in [place[2]]
    if page.name not in NOT_KEPT
]


def stale(text: str, result: Path) -> bool:
    """Whether a place of a page holds another table than the result."""
    kept = json.loads(result.read_text(encoding="utf-8"))
    table = Table("", kept["head"], kept["rows"]).markdown()
    return text != f"{text.splitlines()[0]}\n{table}\n<!-- end -->"


@pytest.mark.parametrize("page, name, text", PLACES)
def test_a_page_has_what_was_kept(page: str, name: str, text: str) -> None:
    assert not stale(text, RESULTS[name])


def test_every_result_is_on_a_page() -> None:
    assert {name for _, name, _ in PLACES} == set(RESULTS)


def test_a_changed_number_is_seen(tmp_path: Path) -> None:
    page, result = tmp_path / "page.md", tmp_path / "some.json"
    page.write_text("# A\n\n<!-- table some.json students -->\nold\n<!-- end -->\n\nrest\n")
    made = Table("", ["student", "nats"], [["one", "1.234"], ["two", "0.5"]])
    keep(made, result, page)
    [place] = PLACE.finditer(page.read_text())
    assert page.read_text().endswith("<!-- end -->\n\nrest\n")
    assert not stale(place[0], result)
    assert stale(place[0].replace("1.234", "1.233"), result)
