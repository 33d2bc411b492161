"""A text ends before the first complete stop, however it is split into pieces."""

from __future__ import annotations

import pytest
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
    until, written, after = Until(stops), "", ""
    for piece in pieces:
        before = until.found
        fresh = until.feed(piece)
        assert not (before and fresh)
        written += fresh
        after += piece if before else until.rest
    found = until.found
    assert not found or (until.stop in stops and written + until.stop + after == "".join(pieces))
    assert (written + until.end(), found) == ended("".join(pieces), stops)


def test_stop_holds_back_only_prefixes() -> None:
    until = Until(["END", "."])
    assert [until.feed(piece) for piece in ("on", "E", "N", "C", "EN", "D.", "x")] == ["on", "", "", "ENC", "", "", ""]
    assert until.found and until.end() == ""


class Counted(str):
    """A text that counts how many of its letters are looked at."""

    looks = 0

    def __getitem__(self, place: object) -> str:
        found = super().__getitem__(place)  # type: ignore[index]
        Counted.looks += len(found)
        return found


def test_work_does_not_grow_with_the_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """One stop text holds back hundreds of letters, which may begin none of the others, or all but the end of them."""
    monkeypatch.setattr(Counted, "looks", 0)
    size = 300
    stops = [Counted("a" * size), *(Counted("ba" * n + "c" * size) for n in range(1, 9)), Counted("a" * size + "b")]
    pieces = ["a" * (size - 1), "b"] + ["a"] * (size - 1) + ["b", "a"] * 40
    until = Until(stops)
    written = "".join(map(until.feed, pieces)) + until.end()
    assert written == "".join(pieces)
    assert Counted.looks <= 6 * len(stops) * len(written)
