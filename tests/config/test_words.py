"""Words for a person."""

from __future__ import annotations

from t2r_export.config.words import ranges


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
