"""README's picture has the numbers of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from picture import HEAD, SERIES, read
from t2r_runtime.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "real-weights.md").read_text(encoding="utf-8")


def test_every_length_of_the_page_is_read() -> None:
    found = read(PAGE)
    assert list(found) == list(SERIES)
    lines = PAGE.partition(HEAD)[2].partition("\n\n")[0].splitlines()
    steps = [line for line in lines if line.startswith("| step") or line[2:3].isdigit()]
    for points in found.values():
        assert len(points) == len(steps) == 4
    assert f"| {found['llama.cpp'][8000]} | {found['`keep`'][8000]} (" in steps[-1]


def test_a_page_without_the_table_is_refused() -> None:
    with pytest.raises(UserError, match="a table with the columns"):
        read(PAGE.replace(HEAD, "| |"))
    with pytest.raises(UserError, match="a table with the columns"):
        read(HEAD)
