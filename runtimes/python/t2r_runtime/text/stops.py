"""Stop strings of streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class Until:
    """Truncates a streamed text before the first stop string to be complete, of several the longest.

    The result does not depend on how the text is split into pieces. A possible beginning of a stop string is held back.
    A piece takes time in proportion to its length and the number of stop strings, whatever their lengths.

    Attributes:
        found: whether a stop string is complete.
        stop: that string.
        rest: what follows it in its piece.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Stop(stop) for stop in stops]
        self._waiting = self.stop = self.rest = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """Add a piece; returns the text that is certain now, "" after a stop."""
        if self.found:
            return ""
        ends = [(end, end - len(stop.text)) for stop in self._stops if (end := stop.end_in(piece))]
        held = max((stop.matched for stop in self._stops), default=0)
        self._waiting, before = self._waiting + piece, len(self._waiting)
        self.found = bool(ends)
        if not ends:
            certain = self._waiting[: len(self._waiting) - held]
            self._waiting = self._waiting[len(certain) :]
            return certain
        end, start = min(ends)
        self.stop, self.rest = self._waiting[before + start : before + end], piece[end:]
        certain, self._waiting = self._waiting[: before + start], ""
        return certain

    def end(self) -> str:
        """Return the text held back at the end."""
        rest, self._waiting = self._waiting, ""
        for stop in self._stops:
            stop.matched = 0
        return rest


class _Stop:
    """Searches a text for one stop string (Knuth, Morris and Pratt 1977, Fast pattern matching in strings).

    Attributes:
        matched: length of the longest end of the text so far that begins the stop string.
    """

    def __init__(self, text: str) -> None:
        self.text, self.matched = text, 0
        self._borders = [0, 0]  # length of the longest proper end of text[:n] that begins it too, for n = 0, 1, …

    def end_in(self, piece: str) -> int:
        """Read a piece until the stop string is complete; returns how much of it was read then, or 0."""
        for place, letter in enumerate(piece, 1):
            self.matched = self._after(self.matched, letter)
            if self.matched == len(self.text):
                return place
        return 0

    def _after(self, matched: int, letter: str) -> int:
        """The length matched after one more letter."""
        while matched and self.text[matched] != letter:
            matched = self._border(matched)
        return matched + (self.text[matched] == letter)

    def _border(self, size: int) -> int:
        while len(self._borders) <= size:  # only as far as the text has matched, so that a long stop costs nothing
            self._borders.append(self._after(self._borders[-1], self.text[len(self._borders) - 1]))
        return self._borders[size]
