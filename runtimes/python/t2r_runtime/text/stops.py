"""Stop strings of streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class Until:
    """Truncates a streamed text before the first stop string to be complete, of several the longest.

    The result does not depend on how the text is split into pieces. A possible beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._waiting = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """Add a piece; returns the text that is certain now, "" after a stop."""
        if self.found:
            return ""
        self._waiting += piece
        there = [(self._waiting.find(stop), stop) for stop in self._stops]
        ends = [(place + len(stop), place) for place, stop in there if place >= 0]
        if ends:
            certain = self._waiting[: min(ends)[1]]
            self._waiting, self.found = "", True
            return certain
        held = max((self._begun(stop) for stop in self._stops), default=0)
        certain = self._waiting[: len(self._waiting) - held]
        self._waiting = self._waiting[len(certain) :]
        return certain

    def end(self) -> str:
        """Return the text held back at the end."""
        rest, self._waiting = self._waiting, ""
        return rest

    def _begun(self, stop: str) -> int:
        """Length of the longest suffix of the waiting text that begins `stop`."""
        longest = min(len(stop) - 1, len(self._waiting))
        return next((n for n in range(longest, 0, -1) if self._waiting.endswith(stop[:n])), 0)
