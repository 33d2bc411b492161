"""Separates the calls in a streamed text from its other text."""

from __future__ import annotations

from t2r_runtime.serve.tools.base import Call, Format, Functions, Unfinished
from t2r_runtime.text.stops import Until

TRIES = 16  # end tags of a block of calls; all but the last are in strings


class CallStream:
    """The calls and the other text of an answer, which do not depend on how it is divided into pieces.

    A call is returned when it is complete. Calls that are malformed, or of a function that there is not, are other
    text, with their tags. Blanks before and after calls are dropped.

    Args:
        functions: those that may be called.
        most: number of calls that are returned; None returns all.
    """

    def __init__(self, format: Format, functions: Functions, most: int | None = None) -> None:
        self._format, self._functions, self._most = format, functions, most
        self._until: Until | None = Until(format.begins)  # the next tag; None: the end of the text
        self._bare = format.bare  # as long as it may begin calls
        self._blanks: list[str] = []  # before what follows
        self._block: list[str] | None = None  # text of calls so far
        self._begin, self._tries = "", 0  # of the block
        self.calls = 0

    def feed(self, piece: str) -> tuple[str, list[Call]]:
        """Add a piece; returns the other text and the calls that are certain now."""
        content, calls = "", list[Call]()
        while piece:
            if self._block is None:
                text, piece = self._outside(piece)
            else:
                text, found, piece = self._inside(piece)
                calls += found
            content += text
        return content, calls

    def end(self) -> tuple[str, list[Call]]:
        """The rest, at the end of the text; an end tag may be missing."""
        rest = "" if self._until is None else self._until.end()
        content, calls = "", list[Call]()
        if self._block is None:
            content = self._certain(rest)
        else:
            self._block.append(rest)
            self._tries = TRIES
            content, calls = self._closed("")
        return content + ("" if self.calls else "".join(self._blanks)), calls

    def _outside(self, piece: str) -> tuple[str, str]:
        """Other text, and the rest of the piece after a tag."""
        assert self._until is not None
        if self._bare:
            text = piece.lstrip()
            if text.startswith(self._bare):
                self._blanks.append(piece[: len(piece) - len(text)])
                self._open("")
                return "", text
            self._bare = "" if text else self._bare
        content = self._certain(self._until.feed(piece))
        if not self._until.found:
            return content, ""
        rest = self._until.rest
        self._open(self._until.stop)
        return content, rest

    def _open(self, begin: str) -> None:
        self._block, self._begin, self._tries, self._bare = [], begin, 0, ""
        self._until = Until([self._format.end]) if self._format.end else None

    def _inside(self, piece: str) -> tuple[str, list[Call], str]:
        """Other text and calls, and the rest of the piece after them."""
        assert self._block is not None
        self._block.append(piece if self._until is None else self._until.feed(piece))
        if self._until is None or not self._until.found:
            return "", [], ""
        rest, self._tries = self._until.rest, self._tries + 1
        return *self._closed(self._format.end), rest

    def _closed(self, end: str) -> tuple[str, list[Call]]:
        """The block at a possible end of it."""
        assert self._block is not None
        text = "".join(self._block)
        content, calls = "", list[Call]()
        last = self._format.last if end and not text.rstrip().endswith(self._format.last) else ""
        try:
            calls, rest = self._format.calls(text + last, self._functions)
        except ValueError as error:
            if isinstance(error, Unfinished) and self._tries < TRIES:
                self._block, self._until = [text + end], Until([end])
                return "", []
            content = self._certain(self._begin + text + end)
        else:
            self._blanks.clear()
            content = self._certain(rest)
        self._block, self._until = None, Until(self._format.begins)
        calls = calls if self._most is None else calls[: max(self._most - self.calls, 0)]
        self.calls += len(calls)
        return content, calls

    def _certain(self, text: str) -> str:
        """Other text, without blanks at its end, which may precede calls."""
        whole = text.rstrip()
        if not whole:
            self._blanks.append(text)
            return ""
        content = "".join(self._blanks) + whole
        self._blanks = [text[len(whole) :]]
        return content
