"""A text ends before the first complete stop, however it is split into pieces."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from t2r_runtime.text.stops import Until


def ended(text: str, stops: list[str]) -> tuple[str, bool]:
    """By definition: character by character."""
    for end in range(1, len(text) + 1):
        if there := [end - len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: min(there)], True
    return text, False


letters = st.text("abc", max_size=12)


@given(st.lists(letters, max_size=6), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
@example(["ab", "cd"], ["abcd", "bc"])
@example(["a", "b"], ["b", "ab"])
def test_stop_independent_of_pieces(pieces: list[str], stops: list[str]) -> None:
    until, written = Until(stops), ""
    for piece in pieces:
        before = until.found
        fresh = until.feed(piece)
        assert not (before and fresh)
        written += fresh
    found = until.found
    assert (written + until.end(), found) == ended("".join(pieces), stops)


def test_stop_holds_back_only_prefixes() -> None:
    until = Until(["END", "."])
    assert [until.feed(piece) for piece in ("on", "E", "N", "C", "EN", "D.", "x")] == ["on", "", "", "ENC", "", "", ""]
    assert until.found and until.end() == ""
