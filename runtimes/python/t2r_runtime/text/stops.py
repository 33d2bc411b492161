"""Texts that end a text: what is written is held back where it may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class Until:
    """A text that comes in pieces, up to the first of `stops` that is complete in it; of those that are complete at the
    same character, up to the longest. How the text is cut into pieces changes nothing.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._waiting = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What of the text is certain now; "" when it has ended."""
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
        """What was held back, when nothing more comes."""
        rest, self._waiting = self._waiting, ""
        return rest

    def _begun(self, stop: str) -> int:
        """How many characters at the end of what waits begin `stop`."""
        longest = min(len(stop) - 1, len(self._waiting))
        return next((n for n in range(longest, 0, -1) if self._waiting.endswith(stop[:n])), 0)
