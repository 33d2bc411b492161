"""Every promise of SECURITY.md names a test; test_documented_paths.py checks that each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "SECURITY.md").read_text("utf-8")


def test_every_promise_names_a_test() -> None:
    promises = PAGE[PAGE.index("\n## Promises") : PAGE.index("\n## No promises")]
    parts = re.split(r"^\*\*", promises, flags=re.MULTILINE)[1:]
    assert len(parts) == 9
    assert all("::test_" in part for part in parts)
